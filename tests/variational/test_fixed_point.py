"""lambda: the paper's iteration, the default solver, and what happens when they cannot finish."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from conftest import Small, small

from gptf_gpytorch import GPTF, CollapsedELBO, ProbitLikelihood, initialize
from gptf_gpytorch.errors import LambdaWarning
from gptf_gpytorch.likelihoods import log_Phi, rho
from gptf_gpytorch.variational.evaluation import default_tolerance
from gptf_gpytorch.variational.fixed_point import fixed_point, newton
from gptf_gpytorch.variational.statistics import CurvatureStatistics, slope_and_curvature

DATA = Path(os.environ.get("GPTF_DATA_DIR", Path(__file__).parents[3] / "shared" / "data"))


def random_problem(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Signed whitened features of a random size and scale: w_j s_j `[p, n]`, and W."""
    n, p = (int(torch.randint(1, high, (), generator=generator)) for high in (40, 8))
    scale = 10.0 ** float(4.0 * torch.rand((), generator=generator) - 2.0)
    w = scale * torch.randn(p, n, dtype=torch.float64, generator=generator)
    return w, w @ w.T


def curvature(w: torch.Tensor, eta: torch.Tensor) -> CurvatureStatistics:
    t = w.T @ eta
    slope = rho(t)
    return CurvatureStatistics(log_Phi(t).sum(), w @ slope, (w * (slope * (slope + t)).clamp(0, 1)) @ w.T)


def test_the_paper_iteration_never_lowers_the_bound_on_1000_random_problems() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(1000):
        w, W = random_problem(generator)
        values: list[float] = []

        def evaluate(eta: torch.Tensor, w: torch.Tensor = w, values: list[float] = values) -> CurvatureStatistics:
            found = curvature(w, eta)
            values.append(float(found.log_Phi - 0.5 * eta @ eta))
            return found

        start = torch.randn(w.size(0), dtype=torch.float64, generator=generator)
        fixed_point(evaluate, W, start, tolerance=1e-8, max_passes=30)
        steps = np.diff(values)
        assert np.all(steps >= -1e-9), steps.min()


def test_the_default_solver_is_monotone_and_reaches_the_optimum_on_1000_random_problems() -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(1000):
        w, _ = random_problem(generator)
        start = torch.randn(w.size(0), dtype=torch.float64, generator=generator)
        begin = curvature(w, start).log_Phi - 0.5 * start @ start
        solution = newton(lambda eta, w=w: curvature(w, eta), start, tolerance=1e-8)
        end = curvature(w, solution.eta).log_Phi - 0.5 * solution.eta @ solution.eta
        assert solution.converged, solution
        assert solution.passes <= 30
        assert end >= begin - 1e-9 * abs(begin)
        gradient = curvature(w, solution.eta).a5 - solution.eta
        assert solution.gradient_norm == pytest.approx(float(gradient.norm()), abs=1e-12)


def test_a_step_that_is_expected_to_solve_it_does() -> None:
    """The last step is not looked at by the solver, so here it is. A few, from far away, are no good: callers look, too."""
    generator = torch.Generator().manual_seed(2)
    saved, missed = 0, 0
    for _ in range(1000):
        w, _ = random_problem(generator)
        start = torch.randn(w.size(0), dtype=torch.float64, generator=generator)
        looked, foreseen = (
            newton(lambda eta, w=w: curvature(w, eta), start, tolerance=1e-8, foresee=foresee)
            for foresee in (False, True)
        )
        assert not looked.expected
        gradient = curvature(w, foreseen.eta).a5 - foreseen.eta
        missed += int(gradient.norm() > 1e-8)
        saved += looked.passes - foreseen.passes
        assert (foreseen.passes < looked.passes) == foreseen.expected
    assert missed <= 5
    assert saved > 800


def test_a_step_that_was_expected_to_solve_it_and_did_not_is_followed_by_more(
    probit: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    mll = probit.mll()
    bound = mll(probit.model(probit.indices), probit.y).item()
    assert mll.solution.expected
    assert mll.solution.gradient_norm <= 1e-8
    assert mll.solution.gradient_norm == pytest.approx(_norm(mll, probit), rel=1e-3, abs=1e-13)
    few = mll.solution.passes
    probit.model.variational_strategy._variational_distribution.variational_mean.zero_()
    monkeypatch.setattr("gptf_gpytorch.variational.fixed_point._MARGIN", 1e12)  # the second step is believed in
    assert mll(probit.model(probit.indices), probit.y).item() == pytest.approx(bound, rel=1e-12)
    assert mll.solution.converged
    assert mll.solution.passes >= few
    assert _norm(mll, probit) <= 1e-8


def _norm(mll: CollapsedELBO, problem: Small) -> float:
    """The gradient at the lambda that was written."""
    with torch.no_grad():
        again = problem.mll(lambda_tolerance=1e3)
        again(problem.model.train()(problem.indices), problem.y)
    return again.solution.gradient_norm


def test_one_step_is_the_papers_equation(probit: Small) -> None:
    """Whitened here, unwhitened in the oracle."""
    mll = probit.mll(lambda_solver="fixed_point", lambda_passes=2)
    with pytest.warns(LambdaWarning):
        mll(probit.model(probit.indices), probit.y)
    values = (probit.X, probit.B, probit.k, probit.y.numpy())
    expected = reference.fixed_point_step(
        *values, np.zeros(len(probit.B)), probit.model.variational_strategy.jitter_val
    )
    np.testing.assert_allclose(probit.model.variational_strategy.lam, expected, rtol=1e-9)


def test_both_solvers_find_the_same_optimum(probit: Small) -> None:
    found = []
    for solver in ("newton", "fixed_point"):
        mll = probit.mll(lambda_solver=solver, lambda_tolerance=1e-10)
        probit.model.variational_strategy._variational_distribution.variational_mean.zero_()
        bound = mll(probit.model(probit.indices), probit.y)
        found.append((bound.item(), mll.solution))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    torch.testing.assert_close(found[0][1].eta, found[1][1].eta, rtol=0, atol=1e-8)
    assert found[0][1].passes < found[1][1].passes


def test_the_next_evaluation_starts_from_the_last_lambda(probit: Small) -> None:
    mll = probit.mll()
    mll(probit.model(probit.indices), probit.y)
    assert mll.solution.passes > 1
    mll(probit.model(probit.indices), probit.y)
    assert mll.solution.passes == 1
    copy = small(True, seed=5)
    copy.model.load_state_dict(probit.model.state_dict())
    again = copy.mll()
    again(copy.model(probit.indices), probit.y)
    assert again.solution.passes == 1, "lambda must live in the state dict"


def test_not_reaching_the_tolerance_is_reported(probit: Small) -> None:
    mll = probit.mll(lambda_passes=2)
    with pytest.warns(LambdaWarning, match=r"at most 1e-08. Reached .* after 2 passes of newton"):
        mll(probit.model(probit.indices), probit.y)
    assert not mll.solution.converged


def test_a_tolerance_below_rounding_stops_and_says_so() -> None:
    large = small(True, n=3000, seed=2)
    mll = large.mll(lambda_tolerance=1e-30)
    with pytest.warns(LambdaWarning):
        mll(large.model(large.indices), large.y)
    assert mll.solution.passes < 30
    assert mll.solution.gradient_norm < 1e-11


def test_the_default_tolerance_grows_with_the_number_of_entries() -> None:
    for num_data, expected in ((1, 1e-8), (100_000, 1e-8), (400_000, 4e-8), (10**9, 1e-4)):
        assert default_tolerance(num_data, torch.float64) == pytest.approx(expected)


def test_newton_never_keeps_a_step_that_lowers_the_bound() -> None:
    """A start far out, where a full step overshoots: without halving, the bound would fall."""
    w = torch.tensor([[3.0, -2.0, 5.0], [1.0, 4.0, -6.0]], dtype=torch.float64)
    tried = []

    def evaluate(eta: torch.Tensor) -> CurvatureStatistics:
        found = curvature(w, eta)
        # A curvature that is too small makes every full step too long.
        tried.append(float(found.log_Phi - 0.5 * eta @ eta))
        return found._replace(H=torch.zeros(2, 2, dtype=torch.float64))

    start = torch.tensor([4.0, -3.0], dtype=torch.float64)
    solution = newton(evaluate, start, tolerance=1e-9, max_passes=200)
    assert any(after < before for before, after in pairwise(tried)), "the case must be one that overshoots"
    end = float(curvature(w, solution.eta).log_Phi - 0.5 * solution.eta @ solution.eta)
    assert end == max(tried)
    assert end > tried[0]


def test_a_value_that_rounding_lowers_does_not_undo_a_step_to_the_top() -> None:
    """The sum of very many terms may look lower at the optimum than beside it."""
    w = torch.tensor([[3.0, -2.0, 5.0], [1.0, 4.0, -6.0]], dtype=torch.float64)

    def evaluate(eta: torch.Tensor) -> CurvatureStatistics:
        found = curvature(w, eta)
        at_the_top = float((found.a5 - eta).norm()) < 1e-9
        return found._replace(log_Phi=found.log_Phi - (1e-3 if at_the_top else 0.0))

    solution = newton(evaluate, torch.zeros(2, dtype=torch.float64), tolerance=1e-9, max_passes=200)
    assert solution.converged
    assert solution.passes < 12


def test_a_batch_has_converged_only_if_all_of_it_has() -> None:
    """One easy and one hard problem: the norm that counts is the larger one."""
    w = torch.tensor([1e-3, 30.0], dtype=torch.float64).view(2, 1, 1) * torch.randn(2, 3, 20, dtype=torch.float64)

    def evaluate(eta: torch.Tensor) -> CurvatureStatistics:
        each = [curvature(w[b], eta[b]) for b in range(2)]
        return CurvatureStatistics(*(torch.stack(parts) for parts in zip(*each, strict=True)))

    start = torch.zeros(2, 3, dtype=torch.float64)
    early = newton(evaluate, start, tolerance=1e-8, max_passes=3)
    assert not early.converged
    solution = newton(evaluate, start, tolerance=1e-8)
    assert solution.converged
    gradient = evaluate(solution.eta).a5 - solution.eta
    assert gradient.norm(dim=-1).max() <= 1e-8


def test_the_curvature_stays_within_its_bounds_in_the_far_tails() -> None:
    t = torch.tensor([-1e8, -1e6, -1e3, -10.0, 0.0, 10.0, 1e3], dtype=torch.float64)
    _, h = slope_and_curvature(t)
    assert bool(((h >= 0) & (h <= 1)).all())
    torch.testing.assert_close(
        h[2:5], torch.tensor([0.999998, 0.9906, 2 / torch.pi], dtype=torch.float64), rtol=0, atol=1e-3
    )


@pytest.mark.skipif(not (DATA / "enron").is_dir(), reason="Enron is not here: set GPTF_DATA_DIR")
def test_few_passes_on_enron_from_a_cold_start() -> None:
    """At initialisation and after training, at most 15 passes to a gradient of 1e-8."""
    rows = np.loadtxt(DATA / "enron" / "train-fold-1.txt", delimiter=",")
    indices, y = torch.as_tensor(rows[:, :3]).long() - 1, torch.as_tensor(rows[:, 3])
    torch.manual_seed(0)
    model, likelihood = GPTF(shape=(203, 203, 200), rank=3, num_inducing=100), ProbitLikelihood()
    mll = CollapsedELBO(likelihood, model, num_data=len(y))
    initialize(mll, indices, y)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=40, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = -mll(model(indices), y)
        loss.backward()
        return loss

    start = closure().item()
    assert mll.solution.converged
    assert mll.solution.passes <= 15
    optimizer.step(closure)
    model.variational_strategy._variational_distribution.variational_mean.zero_()
    end = closure().item()
    assert end < 0.5 * start, "training must have changed the model"
    assert mll.solution.gradient_norm <= 1e-8
    assert mll.solution.passes <= 15
