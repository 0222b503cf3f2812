"""Biases of entities: part of the mean, with a posterior whose variance the bound counts; the same on every path."""

import gpytorch
import pytest
import torch
from agreement import check_paths, check_workers, evaluate, weights
from conftest import SHAPE, Small, small
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from gptf_gpytorch import CollapsedELBO, InputError, marginals
from gptf_gpytorch.variational.strategy import CollapsedVariationalStrategy

N = 50
KINDS = [(binary, draws) for binary in (False, True) for draws in (0, 2)]


def biased(binary: bool, draws: int) -> Small:
    problem = small(binary, n=N, draws=draws, biases=True, mean=gpytorch.means.ConstantMean())
    problem.model.covar_module.base_kernel.lengthscale = 2.0
    factors = problem.model.factors
    with torch.no_grad():
        for table in (*factors.biases, *factors.log_deviations, *factors.log_bias_deviations):
            table.copy_(-0.5 + 0.4 * torch.randn_like(table))
    return problem


@pytest.fixture(params=KINDS, ids=lambda kind: f"{'probit' if kind[0] else 'gaussian'}, {kind[1]} draws")
def problem(request: pytest.FixtureRequest) -> Small:
    return biased(*request.param)


class WithOffset(gpytorch.models.ApproximateGP):
    """A GP of all columns of x but the last, which is added to its mean."""

    def __init__(self, model: gpytorch.models.ApproximateGP) -> None:
        points = model.variational_strategy.inducing_points.detach()
        super().__init__(CollapsedVariationalStrategy(self, torch.cat([points, torch.zeros_like(points[:, :1])], 1)))
        self.covar_module, self.mean_module = model.covar_module, model.mean_module

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        mean = self.mean_module(x[..., :-1]) + x[..., -1]
        return gpytorch.distributions.MultivariateNormal(mean, self.covar_module(x[..., :-1]))


def by_hand(problem: Small) -> Tensor:
    """The bound with the sums of biases as given numbers, and what is owed for their posterior."""
    factors, n = problem.model.factors, len(problem.y)
    gaussian = isinstance(problem.likelihood, gpytorch.likelihoods.GaussianLikelihood)
    copies = max(1, factors.draws)
    rows, variances = [], []
    for row in problem.indices:
        cell = list(enumerate(row.tolist()))
        mean = torch.stack([factors.biases[mode][i, 0] for mode, i in cell]).sum()
        variance = torch.stack([factors.log_bias_deviations[mode][i, 0].exp() ** 2 for mode, i in cell]).sum()
        u = torch.cat([factors.weights[mode][i] for mode, i in cell])
        if not factors.draws:
            rows.append(torch.cat([u, mean[None]]))
            variances.append(variance)
            continue
        sigma = torch.cat([factors.log_deviations[mode][i].exp() for mode, i in cell])
        for noise in factors.noise(row[None], range(copies)):
            drawn = mean if gaussian else mean + variance.sqrt() * noise[-1]
            rows.append(torch.cat([u + sigma * noise[:-1], drawn[None]]))
            variances.append(variance if gaussian else torch.zeros_like(variance))
    plain = WithOffset(problem.model)
    mll = CollapsedELBO(problem.likelihood, plain, n * copies, lambda_tolerance=1e-12)
    v = weights(problem).repeat_interleave(copies) / copies
    bound = mll(plain.train()(torch.stack(rows)), problem.y.repeat_interleave(copies), weights=v) * copies * n
    beta = 1.0 / problem.likelihood.noise.squeeze() if gaussian else 1.0
    bound = bound - 0.5 * beta * (v * torch.stack(variances)).sum()
    for u in factors.weights if not factors.draws else ():
        bound = bound - 0.5 * u.square().sum()
    for u, log in zip(factors.weights, factors.log_deviations, strict=False):
        bound = bound - kl_divergence(Normal(u, log.exp()), Normal(0.0, 1.0)).sum()
    for bias, log in zip(factors.biases, factors.log_bias_deviations, strict=True):
        scale = (bias.square() + log.exp().square()).mean().sqrt()
        bound = bound - kl_divergence(Normal(bias, log.exp()), Normal(0.0, scale)).sum()
    return bound / n


def test_the_bound_is_that_of_given_offsets_less_what_their_posterior_costs(problem: Small) -> None:
    expected = by_hand(problem)
    bound, gradients = evaluate(problem)
    assert bound == pytest.approx(expected.item(), rel=1e-10)
    tables = {name: p for name, p in problem.parameters().items() if name.startswith("factors.")}
    assert sum("bias" in name for name in tables) == 2 * len(SHAPE)
    for (name, _), gradient in zip(tables.items(), torch.autograd.grad(expected, list(tables.values())), strict=True):
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-7, atol=1e-10)


def test_the_scale_of_a_mode_is_where_its_divergence_is_smallest(problem: Small) -> None:
    factors = problem.model.factors
    bias, log, variance = factors.biases[0], factors.log_bias_deviations[0], factors.bias_variances()[0]
    divergences = [
        kl_divergence(Normal(bias, log.exp()), Normal(0.0, variance.sqrt() * share)).sum()
        for share in (0.99, 1.0, 1.01)
    ]
    assert divergences[1] < min(divergences[0], divergences[2])


def test_all_paths_agree(problem: Small) -> None:
    check_paths(problem)


def test_it_does_not_matter_how_entries_are_dealt_to_workers(problem: Small) -> None:
    binary, draws = (
        isinstance(problem.likelihood, gpytorch.likelihoods.BernoulliLikelihood),
        problem.model.factors.draws,
    )
    check_workers(problem, lambda: biased(binary, draws), first=31)


def test_predictions_with_draws_have_the_whole_variance_of_biases(problem: Small) -> None:
    evaluate(problem)
    cells, factors = problem.indices[:9], problem.model.factors
    found = marginals(problem.model, cells)
    with torch.no_grad():
        mean, variance = factors.offset(cells)
        for table in factors.biases:
            table.zero_()
        for table in factors.log_bias_deviations:
            table.fill_(-30.0)
        problem.model.variational_strategy.stamp.fill_(problem.model.variational_strategy.checksum())
    without = marginals(problem.model, cells)
    torch.testing.assert_close(found.mean, without.mean + mean)
    torch.testing.assert_close(found.variance, without.variance + variance)


@pytest.mark.parametrize("binary", [False, True], ids=["gaussian", "probit"])
def test_predictions_have_the_biases_of_their_entities(binary: bool) -> None:
    problem, cells = biased(binary, 0), torch.tensor([[0, 1, 2], [0, 3, 2], [4, 0, 1]])
    evaluate(problem)
    factors, q = problem.model.factors, problem.model.eval()(cells)
    with torch.no_grad():
        f = problem.model.variational_strategy(factors(cells))
        b = torch.stack([table[cells[:, mode], 0] for mode, table in enumerate(factors.biases)])
        V = torch.stack([(2 * log[cells[:, mode], 0]).exp() for mode, log in enumerate(factors.log_bias_deviations)])
    torch.testing.assert_close(q.mean, f.mean + b.sum(0))
    torch.testing.assert_close(q.variance, f.variance + V.sum(0))
    # the first two share the entities of modes 0 and 2
    torch.testing.assert_close(q.covariance_matrix[0, 1], f.covariance_matrix[0, 1] + V[0, 0] + V[2, 0])
    torch.testing.assert_close(q.covariance_matrix[0, 2], f.covariance_matrix[0, 2])
    found = marginals(problem.model, cells)
    torch.testing.assert_close(found.mean, q.mean)
    torch.testing.assert_close(found.variance, q.variance)
    prior = problem.model(cells, prior=True)
    spread = problem.model.forward(factors(cells)).variance + sum(factors.bias_variances())
    torch.testing.assert_close(prior.variance, spread, rtol=1e-3, atol=0)
    svgp = problem.model.to_svgp().eval()(cells)
    torch.testing.assert_close(svgp.mean, q.mean)
    torch.testing.assert_close(svgp.covariance_matrix, q.covariance_matrix)


def test_a_generic_kernel_predicts_with_biases_too() -> None:
    problem = small(False, n=N, biases=True, kernel=gpytorch.kernels.RQKernel())
    with torch.no_grad():
        for table in problem.model.factors.biases:
            table.normal_()
    evaluate(problem)
    q, found = problem.model.eval()(problem.indices[:5]), marginals(problem.model, problem.indices[:5])
    torch.testing.assert_close(found.mean, q.mean)
    torch.testing.assert_close(found.variance, q.variance)


def test_fantasies_are_refused() -> None:
    problem = biased(False, 0)
    evaluate(problem)
    with pytest.raises(InputError, match=r"of factors alone\. Got a model with biases"):
        problem.model.eval().get_fantasy_model(problem.model.factors(problem.indices[:2]), problem.y[:2])
