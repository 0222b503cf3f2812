"""The studies compare bounds that are the same where they must be, and count what they spend."""

import json
import subprocess
import sys
from pathlib import Path

import defaults
import expectation_maximisation
import factor_posterior
import joint_lambda
import pytest
import torch
from uncollapsed import gaussian, posterior, probit

N, P = 300, 15


@pytest.mark.parametrize("whitened", [False, True], ids=["plain", "whitened"])
def test_the_uncollapsed_bound_at_the_optimal_posterior_is_the_collapsed_one(whitened: bool) -> None:
    mll, indices, y = expectation_maximisation.problem(N, P, seed=0)
    collapsed = mll(mll.model.train()(indices), y) * N
    q = posterior(mll, whitened=whitened)
    found = gaussian(mll, indices, y, *q, whitened=whitened)
    assert found.item() == pytest.approx(collapsed.item(), rel=1e-7)
    # and nowhere higher
    moved = gaussian(mll, indices, y, q[0] + 0.01 * torch.randn(P, dtype=torch.float64), q[1], whitened=whitened)
    assert moved < found


@pytest.mark.parametrize("whitened", [False, True], ids=["plain", "whitened"])
def test_the_joint_bound_at_the_solved_lambda_is_the_collapsed_one(whitened: bool) -> None:
    mll, indices, y = joint_lambda.problem("newton", N, P, seed=0)
    collapsed = mll(mll.model.train()(indices), y) * N
    lam = mll.solution.eta if whitened else mll.strategy.lam
    assert probit(mll, indices, y, lam, whitened=whitened).item() == pytest.approx(collapsed.item(), rel=1e-7)


@pytest.mark.parametrize("way", joint_lambda.WAYS)
def test_a_way_to_treat_lambda_climbs_within_its_budget(way: str) -> None:
    trace = joint_lambda.run(way, N, P, budget=40, optimizer="lbfgs", seed=0)
    _check(trace, 40)


@pytest.mark.parametrize("whitened", [False, True], ids=["plain", "whitened"])
def test_collapsing_beats_sequential_updates(whitened: bool) -> None:
    budget = 120
    ours = expectation_maximisation.collapsed(N, P, budget, "lbfgs", seed=0)
    theirs = expectation_maximisation.sequential(N, P, budget, "lbfgs", seed=0, evaluations=5, whitened=whitened)
    _check(ours, budget)
    _check(theirs, budget)
    assert ours[-1][-1] > theirs[-1][-1] + 10.0


def test_point_estimates_and_posteriors_are_compared_on_the_same_entries() -> None:
    point, posterior = (
        factor_posterior.run("synthetic", 1, 2, way, iterations=20, inducing=50) for way in ("point", "new draws")
    )
    assert {**point, **posterior} == posterior
    assert point["score"] != posterior["score"]
    other = factor_posterior.run("synthetic", 1, 2, "new draws", repeat=1, iterations=20, inducing=50)
    assert other["score"] != posterior["score"]
    assert -1.5 < posterior["score"] < 0.0


def test_the_study_of_defaults_finds_what_was_committed() -> None:
    committed = json.loads((Path(defaults.__file__).parents[1] / "results" / "defaults.json").read_text())["cells"]
    same = next(cell for cell in committed if (cell["family"], cell["seed"], cell["binary"]) == ("sums", 301, False))
    found = defaults.run("sums", 301, binary=False)
    assert found == {label: pytest.approx(value, rel=0.1) for label, value in same["scores"].items()}
    assert found["ours"] < 0.6 * found["mean"]


def _check(trace: list[tuple[int, float, float]], budget: int) -> None:
    passes, seconds, bounds = zip(*trace, strict=True)
    assert list(passes) == sorted(set(passes))
    assert list(seconds) == sorted(seconds)
    assert list(bounds) == sorted(bounds)
    assert bounds[-1] > bounds[0] + 1.0
    # a line search is not cut in the middle
    assert budget <= passes[-1] < 3 * budget


@pytest.mark.parametrize(
    "name", ["defaults", "expectation_maximisation", "factor_posterior", "joint_lambda", "small_parts"]
)
def test_a_study_begins_as_its_command_says(name: str, tmp_path: Path) -> None:
    script = Path(factor_posterior.__file__).with_name(f"{name}.py")
    assert f"python experiments/studies/{name}.py" in script.read_text(encoding="utf-8")
    done = subprocess.run([sys.executable, script, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
