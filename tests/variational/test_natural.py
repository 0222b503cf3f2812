"""Bounds of parts of the entries at a q(v) that remembers: against the theorems, and against stock GPyTorch at the same q(v)."""

import itertools

import gpytorch
import pytest
import torch
from conftest import N, Small, small
from torch import Tensor
from workers import ThreadCommunicator, Workers

from gptf_gpytorch import CollapsedELBO, ProbitLikelihood
from gptf_gpytorch.variational.bounds import theorem_1, theorem_2
from gptf_gpytorch.variational.natural import remembering_1, remembering_2
from gptf_gpytorch.variational.statistics import GaussianStatistics, ProbitStatistics

SHARE = 0.3


def statistics(p: int = 5) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    w = torch.randn(p, 30, generator=generator, dtype=torch.float64)
    numbers = {"W": w @ w.T, "vector": w @ torch.randn(30, generator=generator, dtype=torch.float64)}
    numbers |= {name: torch.tensor(value).double() for name, value in {"a": 40.0, "a3": 250.0, "n": 30.0}.items()}
    return {name: value.requires_grad_() for name, value in numbers.items()}


def same(bounds: tuple[Tensor, Tensor], inputs: list[Tensor]) -> None:
    found, expected = (torch.autograd.grad(bound, inputs, allow_unused=True) for bound in bounds)
    assert bounds[0].item() == pytest.approx(bounds[1].item(), rel=1e-12)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_whoever_forgets_all_has_theorem_1() -> None:
    given, beta = statistics(), torch.tensor(1.7).double().requires_grad_()
    sums = GaussianStatistics(given["W"], given["vector"], given["a"], given["a3"], given["n"], given["n"].detach())
    found, q = remembering_1(sums, beta, torch.randn(5).double(), torch.eye(5).double(), 1.0)
    expected, collapsed = theorem_1(sums, beta)
    same((sum(found), sum(expected)), [*given.values(), beta])
    for mine, theirs in zip(q, collapsed, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_whoever_forgets_all_has_theorem_2_and_takes_the_papers_step() -> None:
    given, eta = statistics(), torch.linspace(-1.0, 1.0, 5, dtype=torch.float64)
    sums = ProbitStatistics(
        given["W"], -given["a"], given["vector"].detach(), given["a3"], given["n"].detach(), given["n"].detach()
    )
    found, q = remembering_2(sums, eta, 0.1 * torch.eye(5).double(), 1.0)
    expected, collapsed = theorem_2(sums, eta)
    same((sum(found), sum(expected)), [given["W"], given["a"], given["a3"]])
    torch.testing.assert_close(q.root, collapsed.root)
    torch.testing.assert_close(q.inner.tril(), collapsed.inner.tril())
    step = torch.linalg.solve(sums.W + torch.eye(5), sums.W @ eta + sums.a5)
    torch.testing.assert_close(q.mean, step)


def remembering(problem: Small, **options: object) -> CollapsedELBO:
    mll = problem.mll(lambda_tolerance=1e-12, **options)
    mll(problem.model.train()(problem.indices), problem.y)
    mll.sample, mll.forget = N, SHARE
    return mll


def before_it_was_collapsed(problem: Small, model: gpytorch.models.ApproximateGP, rows: slice) -> Tensor:
    """The bound at a stock SVGP's q(v), of some entries weighed to stand for all."""
    q = model(problem.indices[rows])
    sign = 2.0 * problem.y[rows] - 1.0
    if isinstance(problem.likelihood, ProbitLikelihood):
        fit = torch.special.log_ndtr(sign * q.mean) - 0.5 * q.variance
    else:
        fit = problem.likelihood.expected_log_prob(problem.y[rows], q)
    divergence = model.variational_strategy.kl_divergence()
    return N / len(sign) * fit.sum() - divergence + model.factors.log_prior()


@pytest.mark.parametrize("path", ["generic", "whitened", "explicit"])
def test_value_and_gradient_are_those_of_a_stock_svgp_at_that_q(either: Small, path: str) -> None:
    either.model.variational_strategy.jitter_val = 1e-12  # GPyTorch's strategy adds it to the entries' variances, too
    mll, rows = remembering(either, path=path), slice(0, 10)
    with torch.no_grad():  # so that q(v) is no optimum
        either.model.covar_module.base_kernel.raw_lengthscale.add_(0.3)
        either.model.factors.weights[0].add_(0.2)
    eta, _ = (number.clone() for number in mll.strategy.q)
    mll.sample = 10
    bound = N * mll(either.model(either.indices[rows]), either.y[rows], weights=torch.full((10,), N / 10).double())
    names, parameters = zip(*either.parameters().items(), strict=True)
    found = torch.autograd.grad(bound, parameters)
    stock = either.model.to_svgp()
    if isinstance(either.likelihood, ProbitLikelihood):  # whose mean has moved on
        with torch.no_grad():
            stock.variational_strategy._variational_distribution.variational_mean.copy_(eta)
    expected = before_it_was_collapsed(either, stock, rows)
    assert bound.item() == pytest.approx(expected.item(), rel=1e-9)
    theirs = {**dict(stock.named_parameters()), **dict(either.likelihood.named_parameters())}
    gradients = torch.autograd.grad(expected, [theirs[name] for name in names])
    for name, mine, other in zip(names, found, gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7, msg=name)


def test_with_all_entries_again_and_again_q_becomes_the_optimum(either: Small) -> None:
    mll = either.mll(lambda_tolerance=1e-12)
    bounds = []
    mll.sample, mll.forget = N, SHARE
    for _ in range(200):
        bounds.append(mll(either.model.train()(either.indices), either.y).item())
    found = [number.clone() for number in mll.strategy.q]
    mll.sample = None
    collapsed = mll(either.model(either.indices), either.y).item()
    assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(bounds))
    assert bounds[0] < bounds[-1] == pytest.approx(collapsed, rel=1e-10)
    for mine, optimum in zip(found, mll.strategy.q, strict=True):
        torch.testing.assert_close(mine, optimum, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("binary", [False, True])
def test_workers_remember_the_same(binary: bool) -> None:
    problems = [small(binary) for _ in range(4)]

    def job(problem: Small, communicator: ThreadCommunicator | None) -> tuple[float, Tensor, Tensor]:
        rows = slice(None) if communicator is None else [slice(0, 0), slice(0, 15), slice(15, None)][communicator.rank]
        mll = problem.mll(communicator=communicator)
        mll.sample, mll.forget = N, SHARE
        for _ in range(2):
            bound = mll(problem.model.train()(problem.indices[rows]), problem.y[rows])
        return bound.item(), *mll.strategy.q

    expected = job(problems[3], None)
    for found in Workers(3).run(lambda communicator: job(problems[communicator.rank], communicator)):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
