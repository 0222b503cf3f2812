"""Theorem 1 and Theorem 2: the ladder of checks, each by a route of its own."""

import itertools

import gpytorch
import numpy as np
import pytest
import reference
import torch
from conftest import N, Small, small
from gpytorch.kernels import InducingPointKernel
from scipy import integrate, stats

from gptf_gpytorch import GPTF, CollapsedELBO, ProbitLikelihood


def oracle(problem: Small, mll: CollapsedELBO, **options: object) -> float:
    values = (problem.X, problem.B, problem.k, problem.y.numpy())
    jitter = problem.model.variational_strategy.jitter_val
    if isinstance(problem.likelihood, ProbitLikelihood):
        lam = problem.model.variational_strategy.lam.numpy()
        return reference.theorem_2(*values, lam, jitter, problem.U, **options)
    return reference.theorem_1(*values, 1.0 / problem.likelihood.noise.item(), jitter, problem.U, **options)


def test_equals_the_loop_oracle(either: Small) -> None:
    mll = either.mll(lambda_tolerance=1e-12)
    bound = mll(either.model(either.indices), either.y).item() * N
    assert bound == pytest.approx(oracle(either, mll), rel=1e-12)


def test_named_terms_add_up_to_the_bound(either: Small) -> None:
    mll = either.mll()
    bound = mll(either.model(either.indices), either.y).item() * N
    assert sum(term.item() for term in mll.terms.values()) == pytest.approx(bound, rel=1e-14)
    assert mll.terms["factor_prior"].item() == pytest.approx(reference.prior(either.U), rel=1e-14)


def test_inducing_points_at_the_inputs_give_the_exact_evidence(gaussian: Small) -> None:
    """B = X: the bound is log p(y | U) plus log p(U) without its constant."""
    cells = torch.tensor(list(itertools.product(*(range(d) for d in gaussian.model.factors.shape))))[:30]
    y = torch.randn(len(cells), dtype=torch.float64)
    x = gaussian.model.factors(cells).detach()
    strategy = gaussian.model.variational_strategy
    strategy.inducing_points = torch.nn.Parameter(x.clone())
    strategy.jitter_val = 0.0
    mll = CollapsedELBO(gaussian.likelihood, gaussian.model, num_data=len(y))
    bound = mll(gaussian.model(cells), y).item() * len(y)
    evidence = gaussian.likelihood(gaussian.model.forward(x)).log_prob(y).item()
    assert bound == pytest.approx(evidence + reference.prior(gaussian.U), rel=1e-9)


def test_equals_gpytorchs_sgpr(gaussian: Small) -> None:
    """Value and gradients, at jitter 0, on well-spread points."""
    x = gaussian.model.factors(gaussian.indices).detach()
    strategy = gaussian.model.variational_strategy
    strategy.jitter_val = 0.0

    class SGPR(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(x, gaussian.y, gaussian.likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            points = strategy.inducing_points.detach().clone()
            base = gaussian.model.covar_module
            self.covar_module = InducingPointKernel(base, inducing_points=points, likelihood=gaussian.likelihood)

        def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    sgpr = SGPR()
    exact = gpytorch.mlls.ExactMarginalLogLikelihood(gaussian.likelihood, sgpr)
    shared = [*gaussian.model.covar_module.parameters(), *gaussian.likelihood.parameters()]
    with (
        gpytorch.settings.cholesky_jitter(double_value=0.0),
        gpytorch.settings.max_cholesky_size(10**6),
        gpytorch.settings.fast_computations(False, False, False),
    ):
        theirs = exact(sgpr.train()(x), gaussian.y)
        their_gradients = torch.autograd.grad(theirs, [sgpr.covar_module.inducing_points, *shared])
    mll = gaussian.mll()
    mine = mll(gaussian.model(gaussian.indices), gaussian.y)
    my_gradients = torch.autograd.grad(mine, [strategy.inducing_points, *shared])
    without_prior = mine.item() - reference.prior(gaussian.U) / N
    assert without_prior == pytest.approx(theirs.item(), rel=1e-10)
    for ours, other in zip(my_gradients, their_gradients, strict=True):
        assert float((ours - other).norm() / other.norm()) <= 1e-8


def test_gradcheck(either: Small) -> None:
    """Finite differences; for probit lambda is solved again at every point, which checks the envelope theorem."""
    mll = either.mll(chunk_size=7, lambda_tolerance=1e-11)
    parameters = list(either.parameters().values())
    either.model.variational_strategy.jitter_val = 1e-4

    def bound(*_: torch.Tensor) -> torch.Tensor:
        return mll(either.model(either.indices), either.y) * N

    assert torch.autograd.gradcheck(bound, parameters, eps=1e-6, atol=1e-5, rtol=1e-5)


def test_every_parameter_receives_a_gradient(either: Small) -> None:
    (-either.mll()(either.model(either.indices), either.y)).backward()
    for name, parameter in either.parameters().items():
        assert parameter.grad is not None, name
        assert parameter.grad.norm() > 0, name


def test_bounds_lie_below_the_evidence() -> None:
    """Two binary entries: the evidence is the probability of an orthant, here also by quadrature."""
    problem = small(True, n=2)
    points = torch.nn.Parameter(problem.model.variational_strategy.inducing_points.detach()[:2])
    problem.model.variational_strategy.inducing_points = points
    mll = problem.mll()
    bound = mll(problem.model(problem.indices), problem.y).item() * 2 - reference.prior(problem.U)
    x = problem.model.factors(problem.indices).detach()
    K = problem.model.covar_module(x).to_dense().detach().numpy() + np.eye(2)
    s = 2 * problem.y.numpy() - 1
    evidence = np.log(stats.multivariate_normal(cov=K * np.outer(s, s)).cdf([0.0, 0.0]))
    assert bound < evidence
    assert bound > evidence - 1.0, "the bound should not be vacuous on two entries"
    # The same orthant probability by a quadrature over f_2 given f_1, so that the reference itself is checked.
    F = K - np.eye(2)
    normal = stats.norm

    def integrand(f1: float) -> float:
        mean, variance = F[0, 1] / F[0, 0] * f1, F[1, 1] - F[0, 1] ** 2 / F[0, 0]
        second = normal.cdf(s[1] * mean / np.sqrt(1.0 + variance))
        return normal.pdf(f1, scale=np.sqrt(F[0, 0])) * normal.cdf(s[0] * f1) * second

    assert np.log(integrate.quad(integrand, -12, 12)[0]) == pytest.approx(evidence, abs=1e-4)


def test_invariant_to_chunks_and_order(either: Small) -> None:
    reference_bound = None
    for chunk_size, order in [(N, range(N)), (1, range(N)), (7, reversed(range(N))), (13, torch.randperm(N).tolist())]:
        mll = either.mll(chunk_size=chunk_size, lambda_tolerance=1e-11)
        rows = torch.tensor(list(order))
        either.model.zero_grad()
        bound = mll(either.model(either.indices[rows]), either.y[rows])
        bound.backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in either.model.parameters()])
        if reference_bound is None:
            reference_bound, reference_gradient = bound.item(), gradient
        assert bound.item() == pytest.approx(reference_bound, rel=1e-12)
        assert float((gradient - reference_gradient).norm() / reference_gradient.norm()) <= 1e-10


def test_a_weight_of_two_is_the_entry_twice(either: Small) -> None:
    weights = torch.ones(N, dtype=torch.float64)
    weights[:10] = 2.0
    weighted = either.mll(lambda_tolerance=1e-11)
    mine = weighted(either.model(either.indices), either.y, weights=weights) * N
    mine.backward()
    my_gradient = {name: parameter.grad.clone() for name, parameter in either.parameters().items()}
    either.model.zero_grad()
    either.likelihood.zero_grad()
    indices, y = torch.cat([either.indices, either.indices[:10]]), torch.cat([either.y, either.y[:10]])
    twice = CollapsedELBO(either.likelihood, either.model, num_data=N + 10, lambda_tolerance=1e-11)
    theirs = twice(either.model(indices), y) * (N + 10)
    theirs.backward()
    assert mine.item() == pytest.approx(theirs.item(), rel=1e-12)
    for name, parameter in either.parameters().items():
        assert float((parameter.grad - my_gradient[name]).norm()) <= 1e-10 * float(parameter.grad.norm()), name


def test_a_weight_of_zero_is_no_entry(either: Small) -> None:
    weights = torch.ones(N, dtype=torch.float64)
    weights[30:] = 0.0
    mine = either.mll()(either.model(either.indices), either.y, weights=weights).item() * N
    fewer = CollapsedELBO(either.likelihood, either.model, num_data=30)
    assert mine == pytest.approx(fewer(either.model(either.indices[:30]), either.y[:30]).item() * 30, rel=1e-10)


def test_a_mean_equals_training_on_residuals(gaussian: Small) -> None:
    mean = gpytorch.means.LinearMean(6)
    shifted = small(False, mean=mean)
    with torch.no_grad():
        mean.weights.copy_(torch.randn_like(mean.weights))
        residuals = gaussian.y - mean(gaussian.model.factors(gaussian.indices))
        with_mean = shifted.mll()(shifted.model(shifted.indices), shifted.y).item()
        without = gaussian.mll()(gaussian.model(gaussian.indices), residuals).item()
    assert with_mean == pytest.approx(without, rel=1e-13)
    # and predictions put the mean back
    shifted.mll()(shifted.model(shifted.indices), shifted.y)
    gaussian.mll()(gaussian.model(gaussian.indices), residuals)
    cells = torch.tensor([[0, 1, 2], [4, 3, 0]])
    back = gaussian.model.eval()(cells).mean + mean(gaussian.model.factors(cells))
    torch.testing.assert_close(shifted.model.eval()(cells).mean, back, rtol=1e-10, atol=1e-12)


def test_a_mean_enters_the_probit_argument(probit: Small) -> None:
    constant = gpytorch.means.ConstantMean(constant_constraint=None)
    shifted = small(True, mean=constant)
    constant.initialize(constant=0.7)
    mll = shifted.mll(lambda_tolerance=1e-12)
    bound = mll(shifted.model(shifted.indices), shifted.y).item() * N
    assert bound == pytest.approx(oracle(shifted, mll, mu=np.full(N, constant.constant.item())), rel=1e-12)


KERNELS = {
    "matern": lambda: gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=6),
    "rational quadratic": lambda: gpytorch.kernels.RQKernel(),
    "periodic": lambda: gpytorch.kernels.ScaleKernel(gpytorch.kernels.PeriodicKernel()),
    # Not LinearKernel: linear_operator adds low ranks through a Cholesky factor of the rest, with jitter if that is singular.
    "sum": lambda: (
        gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()) + gpytorch.kernels.PolynomialKernel(power=1)
    ),
    "product": lambda: (
        gpytorch.kernels.RBFKernel(active_dims=[0, 1]) * gpytorch.kernels.MaternKernel(active_dims=[2, 3])
    ),
    "active dims": lambda: gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(active_dims=[1, 3, 5])),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("binary", [False, True], ids=["gaussian", "probit"])
def test_any_kernel_equals_dense_autograd_of_the_paper(name: str, binary: bool) -> None:
    """The paper's unwhitened formula in dense torch, differentiated by autograd."""
    problem = small(binary, kernel=KERNELS[name]())
    model, y = problem.model, problem.y
    model.variational_strategy.jitter_val = 1e-5
    mll = problem.mll(chunk_size=9, lambda_tolerance=1e-11)
    bound = mll(model(problem.indices), y) * N
    parameters = {k: v for k, v in problem.parameters().items() if v.requires_grad}
    mine = torch.autograd.grad(bound, list(parameters.values()), allow_unused=True)

    x, B = model.factors(problem.indices), model.variational_strategy.inducing_points
    K_BB = model.covar_module(B).to_dense() + 1e-5 * torch.eye(len(B), dtype=torch.float64)
    K_BX = model.covar_module(B, x).to_dense()
    A1, a3 = K_BX @ K_BX.T, model.covar_module(x, diag=True).sum()
    beta = torch.ones((), dtype=torch.float64) if binary else 1.0 / problem.likelihood.noise.squeeze()
    naive = 0.5 * K_BB.logdet() - 0.5 * (K_BB + beta * A1).logdet() - 0.5 * beta * a3
    naive = naive + 0.5 * beta * torch.linalg.solve(K_BB, A1).trace() + model.factors.log_prior()
    if binary:
        lam = model.variational_strategy.lam
        fit = torch.special.log_ndtr((2 * y - 1) * (K_BX.T @ lam)).sum()
        naive = naive + fit - 0.5 * lam @ K_BB @ lam
    else:
        a4 = K_BX @ y
        quadratic = a4 @ torch.linalg.solve(K_BB + beta * A1, a4)
        naive = naive - 0.5 * beta * y @ y + 0.5 * beta**2 * quadratic + 0.5 * N * (beta / (2 * torch.pi)).log()
    theirs = torch.autograd.grad(naive, list(parameters.values()), allow_unused=True)
    assert bound.item() == pytest.approx(naive.item(), rel=1e-9)
    for parameter, ours, other in zip(parameters, mine, theirs, strict=True):
        if other is None or other.norm() < 1e-12:
            assert ours is None or ours.norm() < 1e-8, parameter
        else:
            assert float((ours - other).norm() / other.norm()) <= 1e-6, parameter


def test_registered_priors_are_counted_as_gpytorch_counts_them(gaussian: Small) -> None:
    plain = gaussian.mll()(gaussian.model(gaussian.indices), gaussian.y).item()
    prior = gpytorch.priors.GammaPrior(2.0, 3.0).double()
    gaussian.model.covar_module.register_prior("outputscale_prior", prior, "outputscale")
    mll = gaussian.mll()
    both = mll(gaussian.model(gaussian.indices), gaussian.y).item()
    expected = prior.log_prob(gaussian.model.covar_module.outputscale).item()
    assert (both - plain) * N == pytest.approx(expected, rel=1e-9)
    assert mll.terms["hyper_prior"].item() == pytest.approx(expected)


def test_priors_of_the_likelihood_and_added_losses_count_too(gaussian: Small) -> None:
    plain = gaussian.mll()(gaussian.model(gaussian.indices), gaussian.y).item()
    prior = gpytorch.priors.GammaPrior(2.0, 3.0).double()
    gaussian.likelihood.register_prior("noise_prior", prior, lambda module: module.noise, None)
    with_prior = gaussian.mll()(gaussian.model(gaussian.indices), gaussian.y).item()
    assert (with_prior - plain) * N == pytest.approx(prior.log_prob(gaussian.likelihood.noise).item(), rel=1e-9)

    class Loss(gpytorch.mlls.AddedLossTerm):
        def loss(self) -> torch.Tensor:
            return torch.tensor(0.25, dtype=torch.float64)

    gaussian.model.register_added_loss_term("extra")
    gaussian.model.update_added_loss_term("extra", Loss())
    with_loss = gaussian.mll()(gaussian.model(gaussian.indices), gaussian.y).item()
    assert with_loss == pytest.approx(with_prior - 0.25, rel=1e-12)


def test_the_factor_prior_is_counted_once_even_if_the_factors_are_shared(gaussian: Small) -> None:
    before = gaussian.mll()(gaussian.model(gaussian.indices), gaussian.y).item()
    gaussian.model.another_name = gaussian.model.factors
    assert gaussian.mll()(gaussian.model(gaussian.indices), gaussian.y).item() == before


def test_one_mode_and_a_rank_for_each_mode() -> None:
    single = GPTF(shape=(12,), rank=2, num_inducing=3)
    y = torch.randn(12, dtype=torch.float64)
    mll = CollapsedELBO(gpytorch.likelihoods.GaussianLikelihood(), single, num_data=12)
    assert mll(single(torch.arange(12).unsqueeze(-1)), y).isfinite()
    mixed = small(False, rank=(1, 3, 2))
    assert mixed.mll()(mixed.model(mixed.indices), mixed.y).isfinite()
    assert mixed.model.relevance().shape == (3,)
