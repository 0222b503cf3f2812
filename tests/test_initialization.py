"""Starts that work, and restarts that keep the best."""

import warnings
from copy import deepcopy

import gpytorch
import pytest
import torch
from conftest import Small, small
from workers import Workers

from gptf_gpytorch import GPTF, CollapsedELBO, Communicator, InputError, ProbitLikelihood, initialize, restart
from gptf_gpytorch.likelihoods import log_Phi


def few_steps(mll: CollapsedELBO, problem: Small) -> None:
    parameters = [*mll.model.parameters(), *mll.likelihood.parameters()]
    optimizer = torch.optim.LBFGS(parameters, max_iter=8, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = -mll(mll.model.train()(problem.indices), problem.y)
        loss.backward()
        return loss

    optimizer.step(closure)


def test_the_same_seed_gives_the_same_start_and_another_another(either: Small) -> None:
    states = []
    for seed in (3, 3, 4):
        torch.manual_seed(len(states))  # the global generator must not matter
        initialize(either.mll(), either.indices, either.y, seed=seed)
        states.append({name: value.clone() for name, value in either.parameters().items()})
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["factors.weights.0"], states[2]["factors.weights.0"])


@pytest.mark.parametrize("ends", [(0, 13, 40), (0, 0, 40), (0, 5, 22, 40)])
def test_the_start_does_not_depend_on_the_number_of_workers(either: Small, ends: tuple[int, ...]) -> None:
    def start(rows: slice, communicator: Communicator | None = None) -> torch.Tensor:
        likelihood, model = deepcopy((either.likelihood, either.model))
        mll = CollapsedELBO(likelihood, model, len(either.y), communicator)
        initialize(mll, either.indices[rows], either.y[rows])
        return torch.cat([parameter.detach().flatten() for parameter in mll.parameters()])

    assert len(either.y) == ends[-1]
    found = Workers(len(ends) - 1).run(lambda comm: start(slice(*ends[comm.rank : comm.rank + 2]), comm))
    alone = start(slice(None))
    for worker in found:
        assert torch.equal(worker, found[0])
        torch.testing.assert_close(worker, alone, rtol=1e-12, atol=1e-12)


def test_inducing_points_do_not_depend_on_the_number_of_draws() -> None:
    """An entry is one entry of the sample that k-means sees, however often the bound counts it."""
    problem, points = small(False, n=400), []
    for draws in (1, 4):
        model = GPTF(shape=(5, 4, 3), rank=2, num_inducing=20, draws=draws)
        initialize(CollapsedELBO(problem.likelihood, model, num_data=400), problem.indices, problem.y)
        points.append(model.variational_strategy.inducing_points.detach())
    assert torch.equal(*points)


def test_factors_are_small_and_inducing_points_lie_among_the_inputs() -> None:
    problem = small(False, n=400)
    model = GPTF(shape=(5, 4, 3), rank=2, num_inducing=20)
    mll = CollapsedELBO(problem.likelihood, model, num_data=400)
    initialize(mll, problem.indices, problem.y)
    for table in model.factors.weights:
        assert table.std() < 0.2
    x, B = model.factors(problem.indices).detach(), model.variational_strategy.inducing_points.detach()
    nearest = torch.cdist(B, x).min(dim=1).values
    assert nearest.max() < 0.1
    assert torch.cdist(B, B).fill_diagonal_(1.0).min() > 1e-3


def test_scales_come_from_the_data(gaussian: Small) -> None:
    mll = gaussian.mll()
    initialize(mll, gaussian.indices, 100.0 * gaussian.y)
    square = float((100.0 * gaussian.y).square().mean())
    assert gaussian.model.covar_module.outputscale.item() == pytest.approx(square, rel=1e-6)
    assert 0 < gaussian.likelihood.noise.item() < square


def test_scales_are_those_of_all_entries_not_of_the_first() -> None:
    n = 30_000
    y = torch.cat([0.01 * torch.randn(20_000), 100.0 * torch.randn(10_000)]).double()
    model, likelihood = GPTF(shape=(5, 4, 3), rank=2, num_inducing=4), gpytorch.likelihoods.GaussianLikelihood()
    indices = torch.stack([torch.randint(d, (n,)) for d in (5, 4, 3)], dim=-1)
    initialize(CollapsedELBO(likelihood, model, num_data=n), indices, y)
    assert model.covar_module.outputscale.item() == pytest.approx(float(y.square().mean()), rel=1e-6)


def test_a_constant_mean_starts_at_the_mean_and_frozen_parameters_stay() -> None:
    mean = gpytorch.means.ConstantMean()
    problem = small(False, mean=mean)
    problem.likelihood.noise = 0.123
    problem.likelihood.noise_covar.raw_noise.requires_grad_(False)
    initialize(problem.mll(), problem.indices, 7.0 + problem.y)
    assert mean.constant.item() == pytest.approx(7.0 + float(problem.y.mean()), rel=1e-6)
    assert problem.likelihood.noise.item() == pytest.approx(0.123)
    labels = small(True, mean=gpytorch.means.ConstantMean())
    initialize(labels.mll(), labels.indices, labels.y)
    rate = torch.special.ndtr(labels.model.mean_module.constant).item()
    assert rate == pytest.approx(float(labels.y.mean()), abs=1e-6)


def test_the_noise_stays_within_its_constraint() -> None:
    problem = small(False)
    interval = gpytorch.constraints.Interval(1e-4, 0.1)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=interval)
    initialize(CollapsedELBO(likelihood, problem.model, num_data=40), problem.indices, problem.y)
    assert 1e-4 < likelihood.noise.item() < 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y[:-1], "one target for each entry"),
        (lambda y: y[:, None], "one target for each entry"),
        (lambda y: y * float("nan"), "must be finite"),
        (lambda y: "y", "tensor or an array"),
    ],
)
def test_bad_targets_are_refused_before_anything_is_set(gaussian: Small, change, message: str) -> None:
    before = {name: value.clone() for name, value in gaussian.parameters().items()}
    with pytest.raises(InputError, match=message):
        initialize(gaussian.mll(), gaussian.indices, change(gaussian.y))
    for name, value in gaussian.parameters().items():
        assert torch.equal(value, before[name])


def test_restart_works_from_evaluation_mode_and_without_gradients_and_with_weights(either: Small) -> None:
    either.model.eval()
    weights = torch.linspace(0.5, 1.5, 40, dtype=torch.float64)
    mll = either.mll()
    with torch.no_grad():
        bounds = restart(
            mll, either.indices, either.y, restarts=2, train=lambda m: few_steps(m, either), weights=weights
        )
        kept = mll(either.model.train()(either.indices), either.y, weights=weights).item()
    assert kept == pytest.approx(max(bounds), rel=1e-9)
    assert int(either.model.variational_strategy.stamp) != 0
    assert sum(term.item() for term in mll.terms.values()) / 40 == pytest.approx(max(bounds), rel=1e-9)


def test_a_start_is_invariant_to_the_unit_of_the_targets(gaussian: Small) -> None:
    bounds = []
    for unit in (1.0, 1000.0):
        mll = gaussian.mll()
        initialize(mll, gaussian.indices, unit * gaussian.y)
        bound = mll(gaussian.model(gaussian.indices), unit * gaussian.y).item()
        bounds.append(bound + torch.tensor(unit).log().item())
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-4)


@pytest.mark.parametrize("target", [0.0, 5.0])
def test_constant_targets_do_not_break_it(gaussian: Small, target: float) -> None:
    y = torch.full_like(gaussian.y, target)
    mll = gaussian.mll()
    initialize(mll, gaussian.indices, y)
    assert mll(gaussian.model(gaussian.indices), y).isfinite()


def test_fewer_distinct_inputs_than_inducing_points(either: Small) -> None:
    indices = either.indices[:1].expand(40, 3)
    mll = either.mll()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        initialize(mll, indices, either.y)
        assert mll(either.model(indices), either.y).isfinite()


def test_it_starts_a_plain_model_too() -> None:
    from gptf_gpytorch import CollapsedVariationalStrategy

    class Plain(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            super().__init__(CollapsedVariationalStrategy(self, torch.zeros(5, 2, dtype=torch.float64)))
            self.mean_module, self.covar_module = gpytorch.means.ConstantMean(), gpytorch.kernels.RBFKernel()

        def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    torch.manual_seed(0)
    x, y = torch.randn(60, 2, dtype=torch.float64), torch.randn(60, dtype=torch.float64)
    model = Plain().double()
    initialize(CollapsedELBO(gpytorch.likelihoods.GaussianLikelihood(), model, num_data=60), x, y)
    assert torch.cdist(model.variational_strategy.inducing_points.detach(), x).min(dim=1).values.max() < 1.0
    batched = Plain().double()
    batched.variational_strategy.inducing_points = torch.nn.Parameter(torch.zeros(2, 5, 2, dtype=torch.float64))
    with pytest.raises(InputError, match=r"inducing points \[p, D\]. Got \[2, 5, 2\]"):
        initialize(CollapsedELBO(gpytorch.likelihoods.GaussianLikelihood(), batched, num_data=60), x, y)


def test_restarts_keep_the_best_bound(either: Small) -> None:
    mll = either.mll()
    bounds = restart(mll, either.indices, either.y, restarts=4, train=lambda mll: few_steps(mll, either))
    assert len(bounds) == 4
    assert len(set(bounds)) > 1
    assert not either.model.variational_strategy.is_stale
    with torch.no_grad():
        kept = mll(either.model.train()(either.indices), either.y).item()
    assert kept == pytest.approx(max(bounds), rel=1e-9)
    with pytest.raises(InputError, match="restarts must be an integer of at least 1"):
        restart(mll, either.indices, either.y, restarts=0)


def test_from_this_start_a_known_structure_is_found() -> None:
    """Entries that are a nonlinear function of two factors: predictions of unseen cells beat the mean by far."""
    torch.manual_seed(1)
    u, v = torch.randn(30, dtype=torch.float64), torch.randn(25, dtype=torch.float64)
    truth = torch.sin(2.0 * u[:, None]) * v[None, :]
    cells = torch.cartesian_prod(torch.arange(30), torch.arange(25))[torch.randperm(750)]
    y = truth[cells[:, 0], cells[:, 1]] + 0.05 * torch.randn(750, dtype=torch.float64)
    model, likelihood = GPTF(shape=(30, 25), rank=1, num_inducing=30), gpytorch.likelihoods.GaussianLikelihood()
    mll = CollapsedELBO(likelihood, model, num_data=500)
    problem = Small(model, likelihood, cells[:500], y[:500])

    def train(mll: CollapsedELBO) -> None:
        for _ in range(10):
            few_steps(mll, problem)

    restart(mll, cells[:500], y[:500], restarts=2, train=train)
    with torch.no_grad():
        prediction = model.eval()(cells[500:]).mean
    error = (prediction - truth[cells[500:, 0], cells[500:, 1]]).square().mean().sqrt()
    assert error < 0.3 * truth.std()


def test_probit_training_beats_the_base_rate() -> None:
    torch.manual_seed(1)
    u, v = torch.randn(30, dtype=torch.float64), torch.randn(25, dtype=torch.float64)
    cells = torch.cartesian_prod(torch.arange(30), torch.arange(25))[torch.randperm(750)]
    y = (torch.rand(750) < torch.special.ndtr(3.0 * u[cells[:, 0]] * v[cells[:, 1]])).double()
    model, likelihood = GPTF(shape=(30, 25), rank=1, num_inducing=20), ProbitLikelihood()
    mll = CollapsedELBO(likelihood, model, num_data=500)
    problem = Small(model, likelihood, cells[:500], y[:500])

    def train(mll: CollapsedELBO) -> None:
        for _ in range(5):
            few_steps(mll, problem)

    restart(mll, cells[:500], y[:500], restarts=2, train=train)
    with torch.no_grad():
        log_prob = likelihood(model.eval()(cells[500:])).log_prob(y[500:]).mean()
    assert log_prob > log_Phi(torch.zeros(())) + 0.15
