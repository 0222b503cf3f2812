"""The strategy: when q(v) is written, when it is stale, what survives copies and casts, and GPyTorch's contract."""

import io
import pickle
import unittest
import warnings
from copy import deepcopy

import gpytorch
import numpy as np
import pytest
import reference
import torch
from conftest import Small, small
from gpytorch.test.variational_test_case import VariationalTestCase

from gptf_gpytorch import (
    GPTF,
    CollapsedELBO,
    CollapsedVariationalDistribution,
    CollapsedVariationalStrategy,
    InputError,
    NumericalError,
    ProbitLikelihood,
    StalePosteriorError,
    to_svgp,
)
from gptf_gpytorch.errors import CholeskyError, DeferredPosteriorError, JitterWarning, PrecisionWarning

CELLS = torch.tensor([[0, 0, 0], [4, 3, 2], [2, 1, 1]])


def trained(problem: Small) -> CollapsedELBO:
    mll = problem.mll(lambda_tolerance=1e-11)
    mll(problem.model.train()(problem.indices), problem.y).backward()
    return mll


def moments(model: GPTF) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        q = model.eval()(CELLS)
        return q.mean, q.variance


# Prediction


def test_predictions_equal_the_papers_posterior(either: Small) -> None:
    """The moments of q(v) as the paper prints them, and f given v the textbook way."""
    trained(either)
    strategy = either.model.variational_strategy
    values = (either.X, either.B, either.k, either.y.numpy())
    K_BB, A1, _, _, a4, _ = reference.statistics(*values, strategy.jitter_val)
    if isinstance(either.likelihood, ProbitLikelihood):
        m, beta = K_BB @ strategy.lam.numpy(), 1.0
    else:
        beta = 1.0 / either.likelihood.noise.item()
        m = beta * K_BB @ np.linalg.solve(K_BB + beta * A1, a4)
    C = K_BB @ np.linalg.solve(K_BB + beta * A1, K_BB)
    mean, variance = moments(either.model)
    for place, index in enumerate(CELLS.tolist()):
        x = reference.concatenate(either.U, index)
        expected_mean, expected_variance = reference.predict(x, either.B, either.k, m, C, strategy.jitter_val)
        assert mean[place].item() == pytest.approx(expected_mean, rel=1e-8)
        # GPyTorch adds the jitter to the variance of f, too.
        assert variance[place].item() == pytest.approx(expected_variance + strategy.jitter_val, rel=1e-8)


def test_q_is_the_optimum_of_the_uncollapsed_bound(gaussian: Small) -> None:
    """GPyTorch's own ELBO of the exported SVGP equals the collapsed bound, and any change of q lowers it."""
    mll = trained(gaussian)
    n = len(gaussian.y)
    collapsed = sum(term.item() for name, term in mll.terms.items() if name != "factor_prior") / n
    svgp = gaussian.model.to_svgp().train()
    elbo = gpytorch.mlls.VariationalELBO(gaussian.likelihood, svgp, num_data=n)
    best = elbo(svgp(gaussian.indices), gaussian.y).item()
    assert best == pytest.approx(collapsed, rel=1e-5)
    generator = torch.Generator().manual_seed(0)
    for parameter in svgp.variational_strategy._variational_distribution.parameters():
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
        svgp.variational_strategy._clear_cache()
        assert elbo(svgp(gaussian.indices), gaussian.y).item() < best
        with torch.no_grad():
            parameter.copy_(before)


def test_an_untrained_model_predicts_the_prior(either: Small) -> None:
    q = either.model.eval()(CELLS)
    assert q.mean.abs().max() == 0
    torch.testing.assert_close(q.variance, either.model.covar_module.outputscale.expand(3), rtol=1e-5, atol=1e-5)


def test_prior_mode_returns_the_prior(either: Small) -> None:
    trained(either)
    prior = either.model(CELLS, prior=True)
    torch.testing.assert_close(
        prior.covariance_matrix, either.model.covar_module(either.model.factors(CELLS)).to_dense()
    )


# Deferral


def test_in_training_mode_moments_are_refused_and_shapes_are_known(either: Small) -> None:
    output = either.model.train()(either.indices)
    assert output.inputs is either.indices, "nothing may be gathered yet"
    assert output.event_shape == (40,)
    assert output.batch_shape == ()
    assert "event_shape=(40,)" in repr(output)
    for use in ("mean", "loc", "variance", "stddev", "covariance_matrix", "lazy_covariance_matrix"):
        with pytest.raises(DeferredPosteriorError, match=r"CollapsedELBO.*model.eval\(\)"):
            getattr(output, use)
    with pytest.raises(DeferredPosteriorError):
        either.likelihood(output)
    with pytest.raises(DeferredPosteriorError):
        output.rsample()
    with pytest.raises(DeferredPosteriorError):
        output.log_prob(either.y)


# Staleness


def test_one_process_refreshes_by_itself_after_a_step(either: Small) -> None:
    mll = trained(either)
    before = moments(either.model)[0]
    with torch.no_grad():
        for parameter in either.model.parameters():
            parameter.add_(0.1)
    assert either.model.variational_strategy.is_stale
    after = moments(either.model)[0]
    assert not either.model.variational_strategy.is_stale
    assert (after - before).abs().max() > 1e-3
    fresh = deepcopy(either)
    fresh.model.variational_strategy.stamp.zero_()
    again = fresh.mll(lambda_tolerance=1e-11)
    again(fresh.model.train()(fresh.indices), fresh.y).backward()
    torch.testing.assert_close(after, moments(fresh.model)[0], rtol=1e-8, atol=1e-10)
    del mll


@pytest.mark.parametrize("how", ["in place", "through data", "jitter", "lengthscale"])
def test_without_the_data_a_stale_posterior_is_an_error(either: Small, how: str) -> None:
    trained(either)
    model = deepcopy(either.model)  # a copy does not hold the data
    moments(model)
    if how == "in place":
        with torch.no_grad():
            model.factors[0][0, 0] += 1e-3
    elif how == "through data":
        model.factors[0].data[0, 0] += 1e-3
    elif how == "jitter":
        model.variational_strategy.jitter_val = 1e-3
    else:
        model.covar_module.base_kernel.lengthscale = 0.123
    with pytest.raises(StalePosteriorError, match=r"Call mll.refresh\(\) on all workers"):
        model(CELLS)
    with pytest.raises(StalePosteriorError):
        model.to_svgp()


def test_refresh_brings_it_up_to_date_and_needs_an_evaluation_first(either: Small) -> None:
    with pytest.raises(InputError, match="evaluate first"):
        either.mll().refresh()
    mll = trained(either)
    with torch.no_grad():
        either.model.factors[0].mul_(1.1)
    mll.refresh()
    assert not either.model.variational_strategy.is_stale


@pytest.mark.parametrize("how", ["no_grad", "eval"])
def test_a_validation_bound_does_not_write(either: Small, how: str) -> None:
    """Only an evaluation in training mode with gradients may write q(v)."""
    trained(either)
    before = deepcopy(either.model.state_dict())
    fewer = CollapsedELBO(either.likelihood, either.model, num_data=20)
    if how == "no_grad":
        with torch.no_grad():
            fewer(either.model(either.indices[:20]), either.y[:20])
    else:
        output = either.model(either.indices[:20])
        either.model.eval()
        fewer(output, either.y[:20])
    for name, value in either.model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_attaching_a_likelihood_is_not_a_change(gaussian: Small) -> None:
    """Fantasies need model.likelihood."""
    trained(gaussian)
    model = deepcopy(gaussian.model).eval()
    model.likelihood = deepcopy(gaussian.likelihood)
    new = torch.randn(3, 6).double(), torch.randn(3).double()
    assert isinstance(model.get_fantasy_model(*new), gpytorch.models.ExactGP)
    model.factors[0].data.add_(1.0)
    with pytest.raises(StalePosteriorError):
        model.get_fantasy_model(*new)


def test_changing_the_noise_is_a_change(gaussian: Small) -> None:
    """q(v) depends on it: after training of the likelihood alone predictions must not come from the old noise."""
    mll = trained(gaussian)
    before = moments(gaussian.model)[0]
    gaussian.likelihood.noise = 0.001
    assert gaussian.model.variational_strategy.is_stale
    after = moments(gaussian.model)[0]
    mll.refresh()
    assert torch.equal(after, moments(gaussian.model)[0])
    assert (after - before).abs().max() > 1e-4


def test_swapping_two_rows_is_a_change(either: Small) -> None:
    trained(either)
    with torch.no_grad():
        either.model.factors[0].copy_(either.model.factors[0].flip(0))
    assert either.model.variational_strategy.is_stale


# Copies, casts and state


def test_prediction_needs_the_state_dict_alone(either: Small) -> None:
    trained(either)
    expected = moments(either.model)
    buffer = io.BytesIO()
    torch.save(either.model.state_dict(), buffer)
    buffer.seek(0)
    other = small(True, seed=9).model
    other.load_state_dict(torch.load(buffer, weights_only=True))
    for mine, theirs in zip(moments(other), expected, strict=True):
        assert torch.equal(mine, theirs)


def test_the_state_beyond_the_factors_is_p_squared(either: Small) -> None:
    trained(either)
    p, factors = len(either.B), sum(table.numel() for table in either.model.factors.weights)
    held = sum(value.numel() for value in either.model.state_dict().values())
    assert held - factors <= p * p + 20 * p


@pytest.mark.parametrize(
    "copy", [deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"]
)
def test_copies_predict_the_same_and_do_not_hold_the_data(either: Small, copy) -> None:
    mll = trained(either)
    expected = moments(either.model)
    either.model(CELLS).mean.sum().backward()  # a graph in GPyTorch's caches must not prevent a copy
    other = copy(either.model)
    for mine, theirs in zip(moments(other), expected, strict=True):
        assert torch.equal(mine, theirs)
    with torch.no_grad():
        other.factors[0].add_(1.0)
    with pytest.raises(StalePosteriorError):
        other(CELLS)
    assert not either.model.variational_strategy.is_stale, "the original must not notice"
    del mll


def test_the_bound_can_be_pickled_without_its_data(either: Small) -> None:
    mll = trained(either)
    data = either.indices.numel() * 8 + either.y.numel() * 8
    large = small(isinstance(either.likelihood, ProbitLikelihood), n=4000)
    big = trained(large)
    assert len(pickle.dumps(big)) < len(pickle.dumps(mll)) + data
    with pytest.raises(InputError, match="evaluate first"):
        pickle.loads(pickle.dumps(mll)).refresh()


def test_a_change_of_precision_is_not_a_change_of_parameters(either: Small) -> None:
    trained(either)
    either.model = deepcopy(either.model)
    mean, variance = moments(either.model)
    single = moments(either.model.float())
    assert single[0].dtype == torch.float32
    torch.testing.assert_close(single[0].double(), mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(single[1].double(), variance, rtol=0, atol=1e-3)
    back = moments(either.model.double())
    torch.testing.assert_close(back[0], mean, rtol=0, atol=1e-5)


def test_a_model_can_be_moved_to_another_device(either: Small) -> None:
    """The meta device is everywhere: no buffer or parameter may stay behind."""
    trained(either)
    model = deepcopy(either.model).to("meta")
    assert {value.device.type for value in model.state_dict().values()} == {"meta"}


# Export


def test_the_exported_svgp_is_stock_and_predicts_the_same(either: Small) -> None:
    trained(either)
    svgp = either.model.to_svgp()
    assert type(svgp.variational_strategy) is gpytorch.variational.VariationalStrategy
    cells = torch.cartesian_prod(*(torch.arange(d) for d in either.model.factors.shape))
    with torch.no_grad():
        mine, theirs = either.model.eval()(cells), svgp.eval()(cells)
        torch.testing.assert_close(mine.mean, theirs.mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(mine.variance, theirs.variance, rtol=0, atol=1e-6)
        full = either.likelihood(mine).mean
        torch.testing.assert_close(full, either.likelihood(theirs).mean, rtol=0, atol=1e-6)


def test_a_stock_svgp_loads_the_state(either: Small) -> None:
    """Names and shapes are GPyTorch's: a model with the stock strategy takes the state dict as it is."""
    trained(either)
    state = {k: v for k, v in either.model.state_dict().items() if k.rpartition(".")[2] not in ("stamp", "jitter")}
    stock = small(True, seed=3).model.to_svgp()
    stock.load_state_dict(state)
    stock.variational_strategy.jitter_val = either.model.variational_strategy.jitter_val
    with torch.no_grad():
        torch.testing.assert_close(stock.eval()(CELLS).mean, moments(either.model)[0])


def test_the_export_learns_inducing_points_only_if_the_source_did() -> None:
    for learn in (True, False):
        model = gpytorch.models.ApproximateGP(None)
        model.variational_strategy = CollapsedVariationalStrategy(
            model, torch.randn(3, 2), learn_inducing_locations=learn
        )
        names = [name for name, _ in to_svgp(model).named_parameters()]
        assert ("variational_strategy.inducing_points" in names) is learn
        with pytest.raises(InputError, match="Got VariationalStrategy"):
            to_svgp(to_svgp(model))


def test_the_exported_svgp_trains_further_with_another_likelihood(gaussian: Small) -> None:
    trained(gaussian)
    svgp = gaussian.model.to_svgp().train()
    likelihood = gpytorch.likelihoods.StudentTLikelihood().double()
    elbo = gpytorch.mlls.VariationalELBO(likelihood, svgp, num_data=len(gaussian.y))
    optimizer = torch.optim.Adam([*svgp.parameters(), *likelihood.parameters()], lr=0.02)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = -elbo(svgp(gaussian.indices), gaussian.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert not gaussian.model.variational_strategy.is_stale, "the source must not change with its export"


# Numerical trouble


def test_a_singular_kernel_gets_more_jitter_and_says_so(gaussian: Small) -> None:
    strategy = gaussian.model.variational_strategy
    with torch.no_grad():
        strategy.inducing_points.copy_(strategy.inducing_points[:1].expand(6, -1))
    gaussian.model.covar_module.outputscale = 1e6
    strategy.jitter_val = 1e-12
    mll = gaussian.mll()
    with pytest.warns(JitterWarning, match="instead of 1e-12"):
        mll(gaussian.model(gaussian.indices), gaussian.y)
    assert strategy.jitter_val > 1e-12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mll(gaussian.model(gaussian.indices), gaussian.y)  # the jitter that worked is kept


def test_a_kernel_that_no_jitter_saves_is_an_error_that_says_what_to_try(gaussian: Small) -> None:
    strategy = gaussian.model.variational_strategy
    with torch.no_grad():
        strategy.inducing_points.copy_(strategy.inducing_points[:1].expand(6, -1))
    gaussian.model.covar_module.outputscale = 1e12
    strategy.jitter_val = 1e-12
    with pytest.raises(CholeskyError, match=r"jitter up to 1e-08. Try fewer inducing points.*jitter_val"):
        gaussian.mll()(gaussian.model(gaussian.indices), gaussian.y)
    assert strategy.jitter_val == 1e-12


def test_an_evaluation_that_may_not_write_may_not_raise_the_jitter(gaussian: Small) -> None:
    strategy = gaussian.model.variational_strategy
    with torch.no_grad():
        strategy.inducing_points.copy_(strategy.inducing_points[:1].expand(6, -1))
    gaussian.model.covar_module.outputscale = 1e6
    strategy.jitter_val = 1e-12
    with torch.no_grad(), pytest.raises(CholeskyError, match="jitter up to 1e-12"):
        gaussian.mll()(gaussian.model(gaussian.indices), gaussian.y)
    assert strategy.jitter_val == 1e-12


def test_a_jitter_of_zero_can_be_raised(gaussian: Small) -> None:
    strategy = gaussian.model.variational_strategy
    with torch.no_grad():
        strategy.inducing_points.copy_(strategy.inducing_points[:1].expand(6, -1))
    strategy.jitter_val = 0.0
    with pytest.warns(JitterWarning, match="instead of 0"):
        gaussian.mll()(gaussian.model(gaussian.indices), gaussian.y)


@pytest.mark.parametrize("value", [-1e-3, float("nan"), float("inf"), "a lot"])
def test_a_jitter_must_be_finite_and_not_negative(gaussian: Small, value: object) -> None:
    with pytest.raises(InputError, match="jitter_val must be finite and at least 0"):
        gaussian.model.variational_strategy.jitter_val = value


def test_the_default_jitter_follows_the_precision_until_there_is_a_posterior() -> None:
    points = torch.randn(4, 2)
    model = Plain(points)
    assert model.variational_strategy.jitter_val == pytest.approx(1e-4)
    assert model.double().variational_strategy.jitter_val == pytest.approx(1e-6)
    chosen = GPTF((5, 4), 2, 3, jitter_val=1e-5)
    assert chosen.float().variational_strategy.jitter_val == pytest.approx(1e-5)


def test_a_bound_that_is_not_finite_is_an_error_and_writes_nothing(gaussian: Small) -> None:
    mll = trained(gaussian)
    before = deepcopy(gaussian.model.state_dict())
    gaussian.likelihood.noise_covar.raw_noise.data.fill_(float("nan"))
    with pytest.raises(NumericalError):
        mll(gaussian.model(gaussian.indices), gaussian.y)
    for name, value in gaussian.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    unused = small(False)
    with torch.no_grad():
        unused.model.factors[0][unused.indices[:, 0].max()] = 0.0
        rows = unused.indices[:, 0] != 4
        unused.model.factors[0][4] = float("nan")  # no entry uses it, but its prior does
    fewer = CollapsedELBO(unused.likelihood, unused.model, num_data=int(rows.sum()))
    with pytest.raises(NumericalError, match="factor_prior"):
        fewer(unused.model(unused.indices[rows]), unused.y[rows])


def test_nan_parameters_are_named(either: Small) -> None:
    with torch.no_grad():
        either.model.variational_strategy.inducing_points[0, 0] = float("nan")
    with pytest.raises(NumericalError, match="must be finite"):
        either.mll()(either.model(either.indices), either.y)
    fresh = small(False)
    with torch.no_grad():
        fresh.model.factors[0][0, 0] = float("nan")
    with pytest.raises(NumericalError, match="Got NaN or infinity in W"):
        fresh.mll()(fresh.model(fresh.indices), fresh.y)


# Plain inputs


class Plain(gpytorch.models.ApproximateGP):
    def __init__(self, inducing_points: torch.Tensor) -> None:
        super().__init__(CollapsedVariationalStrategy(self, inducing_points))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def fit(model: Plain, likelihood: gpytorch.likelihoods.Likelihood, x: torch.Tensor, y: torch.Tensor) -> CollapsedELBO:
    mll = CollapsedELBO(likelihood, model, num_data=len(y))
    optimizer = torch.optim.LBFGS([*model.parameters(), *likelihood.parameters()], line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = -mll(model.train()(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    mll.refresh()
    return mll


def test_collapsed_regression_with_plain_inputs() -> None:
    torch.manual_seed(0)
    x = torch.linspace(0, 6, 200, dtype=torch.float64).unsqueeze(-1)
    y = torch.sin(x).squeeze(-1) + 0.1 * torch.randn(200, dtype=torch.float64)
    model, likelihood = Plain(x[::20].clone()).double(), gpytorch.likelihoods.GaussianLikelihood()
    fit(model, likelihood, x, y)
    new = torch.linspace(0.3, 5.7, 30, dtype=torch.float64)
    with torch.no_grad():
        prediction = likelihood(model.eval()(new))
    assert (prediction.mean - torch.sin(new)).abs().max() < 0.1
    assert likelihood.noise.item() == pytest.approx(0.01, rel=0.4)
    assert prediction.variance.mean().item() == pytest.approx(0.01, rel=0.5)


def test_collapsed_probit_classification_with_plain_inputs() -> None:
    torch.manual_seed(0)
    x = 4 * torch.rand(400, 2, dtype=torch.float64) - 2
    truth = torch.special.ndtr(3 * (x[:, 0] * x[:, 1]))
    y = (torch.rand(400) < truth).double()
    model, likelihood = Plain(x[:25].clone()).double(), ProbitLikelihood()
    fit(model, likelihood, x[:300], y[:300])
    with torch.no_grad():
        probability = likelihood(model.eval()(x[300:])).probs
    accuracy = ((probability > 0.5) == (truth[300:] > 0.5)).double().mean()
    assert accuracy > 0.85


def test_inputs_may_come_from_a_network() -> None:
    """A deep kernel: the gradient reaches whatever made the inputs."""
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 2).double()
    data, y = torch.randn(30, 3, dtype=torch.float64), torch.randn(30, dtype=torch.float64)
    model, likelihood = (
        Plain(torch.randn(5, 2, dtype=torch.float64)).double(),
        gpytorch.likelihoods.GaussianLikelihood(),
    )
    mll = CollapsedELBO(likelihood, model, num_data=30, chunk_size=7)

    def bound(*_: torch.Tensor) -> torch.Tensor:
        return mll(model(network(data)), y) * 30

    assert torch.autograd.gradcheck(bound, list(network.parameters()), eps=1e-6, atol=1e-5)
    with pytest.raises(InputError, match="not made by a network"):
        mll.refresh()  # the inputs that were held would be those of the old network


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.full((30, 2), float("nan"), dtype=torch.float64), "Inputs must be finite"),
        (torch.zeros(30, 3, dtype=torch.float64), r"the 2 dimensions of the inducing points. Got \[30, 3\]"),
        (torch.zeros(30, 2, dtype=torch.long), "must be floating point. Got torch.int64"),
    ],
)
def test_bad_plain_inputs(x: torch.Tensor, message: str) -> None:
    model = Plain(torch.randn(5, 2, dtype=torch.float64)).double()
    mll = CollapsedELBO(gpytorch.likelihoods.GaussianLikelihood(), model, num_data=30)
    with pytest.raises(InputError, match=message):
        mll(model(x), torch.zeros(30))


def test_single_precision_inputs_do_not_make_the_bound_single_precision() -> None:
    torch.manual_seed(0)
    model = Plain(torch.randn(5, 2, dtype=torch.float64)).double()
    x, y = torch.randn(30, 2), 1e6 + torch.randn(30, dtype=torch.float64)
    mll = CollapsedELBO(gpytorch.likelihoods.GaussianLikelihood(), model, num_data=30)
    assert mll(model(x), y).item() == mll(model(x.double()), y).item()


# GPyTorch's contract


@pytest.mark.filterwarnings("ignore::gptf_gpytorch.errors.PrecisionWarning")
@pytest.mark.filterwarnings("ignore:It is deprecated to return a value")
class TestGaussianContract(VariationalTestCase, unittest.TestCase):
    """All of it, unmodified: batches of data, models and inducing points, fantasies; in single precision."""

    seed = 0
    batch_shape = torch.Size([])
    distribution_cls = CollapsedVariationalDistribution
    strategy_cls = CollapsedVariationalStrategy
    mll_cls = CollapsedELBO


class Labels:
    """The contract's targets are linspace(-1, 1): for probit, their signs."""

    def __new__(cls, likelihood: ProbitLikelihood, model: gpytorch.models.ApproximateGP, num_data: int):
        mll = CollapsedELBO(likelihood, model, num_data=num_data)
        return lambda output, target: mll(output, (target > 0).to(target.dtype))


@pytest.mark.filterwarnings("ignore::gptf_gpytorch.errors.PrecisionWarning")
@pytest.mark.filterwarnings("ignore:It is deprecated to return a value")
class TestProbitContract(VariationalTestCase, unittest.TestCase):
    """What applies: GPyTorch offers fantasies for Gaussian likelihoods only."""

    seed = 0
    batch_shape = torch.Size([])
    distribution_cls = CollapsedVariationalDistribution
    strategy_cls = CollapsedVariationalStrategy
    mll_cls = Labels
    likelihood_cls = ProbitLikelihood
    test_fantasy_call = test_fantasy_call_batch_inducing = None
    test_fantasy_call_batch_data = test_fantasy_call_batch_model = None


def test_batches_are_computed_one_by_one() -> None:
    """A batch of data sets gives the bounds of each on its own."""
    torch.manual_seed(0)
    x, y = torch.randn(3, 20, 2, dtype=torch.float64), torch.randn(3, 20, dtype=torch.float64)
    points = torch.randn(4, 2, dtype=torch.float64)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    together = CollapsedELBO(likelihood, Plain(points).double(), num_data=20)
    bounds = together(together.model(x), y)
    assert bounds.shape == (3,)
    fresh = Plain(points).double()
    fresh.load_state_dict(together.model.state_dict())
    with torch.no_grad():
        assert torch.equal(fresh.eval()(x).mean, together.model.eval()(x).mean)
    assert together(together.model.train()(x[0]), y[0]).shape == ()
    for place in range(3):
        alone = CollapsedELBO(likelihood, Plain(points).double(), num_data=20)
        assert alone(alone.model(x[place]), y[place]).item() == pytest.approx(bounds[place].item(), rel=1e-12)


def test_a_learned_distribution_is_refused() -> None:
    model = gpytorch.models.ApproximateGP(None)
    learned = gpytorch.variational.CholeskyVariationalDistribution(3)
    with pytest.raises(InputError, match=r"must be a CollapsedVariationalDistribution, or left out. Got CholeskyV"):
        CollapsedVariationalStrategy(model, torch.randn(3, 2), learned)


def test_single_precision_warns_and_says_why(either: Small) -> None:
    either.model.float()
    either.likelihood.float()
    with pytest.warns(PrecisionWarning, match=r"torch.float32.*cancel.*model.double\(\)"):
        either.mll()(either.model(either.indices), either.y)
