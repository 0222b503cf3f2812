"""Factors with a posterior: an average over draws, the same on every path and on any number of workers."""

import gpytorch
import pytest
import torch
from agreement import check_paths, check_workers, evaluate
from conftest import SHAPE, Small, small
from torch.distributions import Normal, kl_divergence

from gptf_gpytorch import CollapsedELBO, KernelPrior, LatentFactors, marginals
from gptf_gpytorch.variational.strategy import CollapsedVariationalStrategy

DRAWS = 3


def spread(binary: bool, n: int = 60, **options: object) -> Small:
    problem = small(binary, n=n, draws=DRAWS, **options)
    problem.model.covar_module.base_kernel.lengthscale = 2.0
    with torch.no_grad():
        for table in problem.model.factors.log_deviations:
            table.copy_(-1.0 + 0.3 * torch.randn_like(table))
    return problem


@pytest.fixture(params=[False, True], ids=["gaussian", "probit"])
def problem(request: pytest.FixtureRequest) -> Small:
    return spread(request.param)


class PlainRBF(KernelPrior, gpytorch.models.ApproximateGP):
    def __init__(self, model: gpytorch.models.ApproximateGP) -> None:
        super().__init__(CollapsedVariationalStrategy(self, model.variational_strategy.inducing_points.detach()))
        self.covar_module, self.mean_module = model.covar_module, model.mean_module


def test_the_bound_is_that_of_the_draws_less_the_divergence(problem: Small) -> None:
    """A copy of an entry for each draw of its inputs, by hand; the gradient by autograd through the inputs."""
    factors, n = problem.model.factors, len(problem.y)
    x = []
    for row in problem.indices:
        noise = factors.noise(row[None], range(DRAWS))
        for draw in range(DRAWS):
            u = torch.cat([table[i] for table, i in zip(factors.weights, row.tolist(), strict=True)])
            log = torch.cat([table[i] for table, i in zip(factors.log_deviations, row.tolist(), strict=True)])
            x.append(u + log.exp() * noise[draw])
    plain = PlainRBF(problem.model)
    mll = CollapsedELBO(problem.likelihood, plain, n * DRAWS, lambda_tolerance=1e-12)
    y, weights = (v.repeat_interleave(DRAWS) for v in (problem.y, torch.linspace(0.5, 2.0, n, dtype=torch.float64)))
    expected = mll(plain.train()(torch.stack(x)), y, weights=weights / DRAWS) * DRAWS
    for u, log in zip(factors.weights, factors.log_deviations, strict=True):
        expected = expected - kl_divergence(Normal(u, log.exp()), Normal(0.0, 1.0)).sum() / n
    bound, gradients = evaluate(problem)
    assert bound == pytest.approx(expected.item(), rel=1e-10)
    tables = {name: p for name, p in problem.parameters().items() if name.startswith("factors.")}
    assert len(tables) == 2 * len(SHAPE)
    for (name, _), gradient in zip(tables.items(), torch.autograd.grad(expected, list(tables.values())), strict=True):
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-7, atol=1e-10)


def test_all_paths_agree(problem: Small) -> None:
    check_paths(problem)


@pytest.mark.parametrize("binary", [False, True], ids=["gaussian", "probit"])
@pytest.mark.parametrize(("draws", "n"), [(0, 11), (1, 11), (3, 3)])
@pytest.mark.parametrize("biases", [False, True])
def test_fewer_entries_than_entities_are_mapped_alike(binary: bool, draws: int, n: int, biases: bool) -> None:
    """Their inputs are gathered one by one, where those of more are in tables that are scaled as a whole."""
    problem = small(binary, n=n, rank=(2, 1, 3), draws=draws, biases=biases)
    assert n * max(1, draws) < sum(SHAPE)
    with torch.no_grad():
        for table in (*problem.model.factors.log_deviations, *problem.model.factors.biases):
            table.copy_(-1.0 + 0.3 * torch.randn_like(table))
    check_paths(problem)


def test_the_gradient_is_that_of_finite_differences(problem: Small) -> None:
    _, gradients = evaluate(problem)
    for name, parameter in problem.parameters().items():
        direction, start, found = torch.randn_like(parameter), parameter.detach().clone(), []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                parameter.copy_(start + step * direction)
            found.append(evaluate(problem)[0])
        with torch.no_grad():
            parameter.copy_(start)
        assert (found[0] - found[1]) / 2e-5 == pytest.approx(
            float((gradients[name] * direction).sum()), rel=1e-5, abs=1e-8
        ), name


def test_it_does_not_matter_how_entries_are_dealt_to_workers(problem: Small) -> None:
    binary = isinstance(problem.likelihood, gpytorch.likelihoods.BernoulliLikelihood)
    check_workers(problem, lambda: spread(binary), first=41)


def test_draws_are_normal_fixed_and_come_in_pairs() -> None:
    factors = LatentFactors((60, 50, 40), 2, draws=4)
    indices = torch.cartesian_prod(*(torch.arange(d) for d in (30, 20, 10)))
    noise = factors.noise(indices, range(4)).view(len(indices), 4, 6)
    assert torch.equal(noise[7], factors.noise(indices[7:8], range(4)))
    assert torch.equal(noise[:, 1], -noise[:, 0])
    assert torch.equal(noise[:, 3], -noise[:, 2])
    assert not bool((noise[:, 0] == noise[:, 2]).all(-1).any())
    flat = noise[:, ::2].flatten(0, 1)
    assert float(flat.mean(0).abs().max()) < 0.05
    torch.testing.assert_close(flat.T.cov(), torch.eye(6, dtype=torch.float64), rtol=0, atol=0.06)
    other = factors.noise(indices, range(4), turn=1).view(len(indices), 4, 6)
    assert float((other[:, 0] * noise[:, 0]).mean(0).abs().max()) < 0.05
    # those that shared a draw do not share the next one
    _, groups = torch.unique(noise[:, 0], dim=0, return_inverse=True)
    _, regroups = torch.unique(other[:, 0], dim=0, return_inverse=True)
    together = torch.unique(torch.stack([groups, regroups]), dim=1).size(1)
    assert together > 0.99 * len(indices)
    # entries of one entity seldom share a draw: they would be fitted with it
    assert len(torch.unique(noise[indices[:, 0] == 3, 0], dim=0)) > 190


def test_predictions_are_those_of_the_mixture(problem: Small) -> None:
    evaluate(problem)
    mll, cells = problem.mll(lambda_tolerance=1e-12), problem.indices[:5]
    mll(problem.model.train()(problem.indices), problem.y).backward()
    factors = problem.model.factors
    found = marginals(problem.model, cells)
    seen = factors.noise(cells, range(DRAWS)).view(5, DRAWS, -1)
    with torch.no_grad():
        noise = factors.noise(cells, range(4, 20)).view(5, 16, -1)
        assert not bool((noise[:, :, None] == seen[:, None]).all(-1).any())
        moments = []
        for draw in range(16):
            q = problem.model.variational_strategy.eval()(factors.draw(cells, noise[:, draw]))
            moments.append((q.mean, q.variance))
        mean, variance = (torch.stack(part) for part in zip(*moments, strict=True))
    torch.testing.assert_close(found.mean, mean.mean(0), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.variance, variance.mean(0) + mean.var(0, correction=0), rtol=1e-6, atol=1e-8)
    assert not torch.allclose(found.mean, problem.model.eval()(cells).mean)


def test_without_deviations_predictions_are_those_of_the_factors(problem: Small) -> None:
    with torch.no_grad():
        for table in problem.model.factors.log_deviations:
            table.fill_(-30.0)
    evaluate(problem)
    found, q = marginals(problem.model, problem.indices[:5]), problem.model.eval()(problem.indices[:5])
    torch.testing.assert_close(found.mean, q.mean)
    torch.testing.assert_close(found.variance, q.variance)
