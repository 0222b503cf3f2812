"""The studies compare bounds that are the same where they must be, and count what they spend."""

import json
import subprocess
import sys
from pathlib import Path

import defaults
import expectation_maximisation
import factor_posterior
import joint_lambda
import numpy as np
import panel
import pytest
import recipe
import recipe_summary
import torch
from baselines.base import Task
from baselines.tools import score
from click.testing import CliRunner
from datasets import Split, synthetic
from methods import make
from recipe_summary import Cell, Labels, Values
from scipy.stats import norm
from sklearn import metrics
from uncollapsed import gaussian, posterior, probit

from gptf_gpytorch import DataError, InputError, TensorEntries

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
    "name", ["defaults", "expectation_maximisation", "factor_posterior", "joint_lambda", "recipe", "small_parts"]
)
def test_a_study_begins_as_its_command_says(name: str, tmp_path: Path) -> None:
    script = Path(factor_posterior.__file__).with_name(f"{name}.py")
    assert f"python experiments/studies/{name}.py" in script.read_text(encoding="utf-8")
    done = subprocess.run([sys.executable, script, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def _cells(shape: tuple[int, ...], count: int, seed: int = 0) -> np.ndarray:
    """Distinct cells, in random order."""
    cells = np.random.default_rng(seed).permutation(np.prod(shape))[:count]
    return np.stack(np.unravel_index(cells, shape), axis=1)


@pytest.mark.parametrize("binary", [False, True], ids=["values", "labels"])
def test_additive_biases_find_sums(binary: bool) -> None:
    generator, shape = np.random.default_rng(0), (20, 15, 10)
    cells = _cells(shape, 1500)
    f = sum(generator.normal(size=d)[cells[:, mode]] for mode, d in enumerate(shape))
    y = 5.0 + f + 0.3 * generator.normal(size=len(f))
    entries = TensorEntries(cells, (y > 5.0).astype(float) if binary else y, shape)
    task, test = Task(entries[:1200], binary, 1, 0), entries[1200:]
    fitted = make("additive", {}).fit(task)
    assert fitted.probabilities == binary
    found = score(test, fitted.predict(test.indices), binary)
    assert found > (0.9 if binary else -0.35)
    assert found > score(test, make("mean", {}).fit(task).predict(test.indices), binary) + 0.3


def test_bayesian_cp_predicts_rows_in_the_order_they_are_asked_for() -> None:
    """Of a tensor of rank 1 with repeated cells, in other units; one entity was never seen."""
    generator, shape = np.random.default_rng(0), (12, 10, 8)
    U = [generator.normal(size=d) for d in shape]
    cells = _cells(shape, 500)
    cells = cells[cells[:, 0] > 0]
    y = 100.0 + 20.0 * np.prod([table[cells[:, mode]] for mode, table in enumerate(U)], axis=0)
    train = TensorEntries(np.repeat(cells, 2, axis=0), np.repeat(y, 2) + np.tile([1.0, -1.0], len(y)), shape)
    fitted = make("smurff", {"burn_in": 50, "samples": 50, "signal_to_noise": 1000.0}).fit(Task(train, False, 2, 0))
    order = np.concatenate([generator.permutation(len(cells)), [3, 3]])  # a cell may be asked for twice
    found = fitted.predict(torch.from_numpy(cells[order]))
    assert np.sqrt(np.mean((found - y[order]) ** 2)) < 0.1 * y.std()
    assert np.isfinite(fitted.predict(torch.tensor([[0, 1, 2]]))).all()


def test_bayesian_cp_gives_probabilities_of_labels_that_may_be_repeated() -> None:
    generator, shape = np.random.default_rng(0), (12, 10, 8)
    cells = _cells(shape, 800)
    y = np.prod([generator.normal(size=d)[cells[:, mode]] for mode, d in enumerate(shape)], axis=0) > 0
    rows = np.concatenate([np.arange(600), [0, 0, 1]])
    train = TensorEntries(cells[rows], y[rows].astype(float), shape)
    test = TensorEntries(cells[600:], y[600:].astype(float), shape)
    fitted = make("smurff", {"burn_in": 50, "samples": 50}).fit(Task(train, True, 2, 0))
    found = fitted.predict(test.indices)
    assert fitted.probabilities
    assert found.min() >= 0.0
    assert found.max() <= 1.0
    assert score(test, found, True) > 0.95


def test_counts_tell_labels_where_popularity_matters() -> None:
    """Users of four entries mostly say 1, those of one mostly 0: too few for their biases."""
    generator = np.random.default_rng(0)
    times = np.repeat([1, 4], [800, 200])
    users = generator.permutation(np.repeat(np.arange(len(times)), times))
    y = (times[users] == 4) ^ (generator.random(len(users)) < 0.3)
    cells = np.stack([users, generator.integers(30, size=len(users))], axis=1)
    entries = TensorEntries(cells, y.astype(float), shape=(len(times), 30))
    train, test = entries[:1200], entries[1200:]
    task = Task(train, True, 1, 0)
    counted, additive = (
        score(test, make(name, {}).fit(task).predict(test.indices), True) for name in ("counts_logistic", "additive")
    )
    assert counted > 0.6
    assert counted > additive + 0.02
    with pytest.raises(InputError, match="counts_logistic must be given a task of labels"):
        make("counts_logistic", {}).fit(Task(train, False, 1, 0))


def test_the_panel_is_read_from_its_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTF_DATA_DIR", str(tmp_path))
    panel.load.cache_clear()
    with pytest.raises(DataError, match=r"folder panel of GPTF_DATA_DIR.* Got no .*beijing_train\.csv\.gz"):
        panel.load("beijing")
    with pytest.raises(InputError, match=r"one of umls, .* Got 'elsewhere'"):
        panel.load("elsewhere")
    (tmp_path / "panel").mkdir()
    frame = panel.pandas.DataFrame({"m0": [3, 5], "m1": [1, 2], "m2": [2, 9], "time": [0.0, 3 / 1460]})
    frame.assign(value=[1.5, -1.0]).to_csv(tmp_path / "panel" / "beijing_train.csv.gz", index=False)
    frame.assign(time=[3 / 1460, 1.0], value=0.0).to_csv(tmp_path / "panel" / "beijing_test.csv.gz", index=False)
    train, binary = panel.load("beijing")
    assert not binary
    assert train.ids() == [(3, 1, 2, 0), (5, 2, 9, 3)]
    test, _ = panel.load("beijing", test=True)
    assert test.indices[:, 3].tolist() == [1, -1]
    panel.load.cache_clear()


def test_weighted_metrics_are_those_of_repeated_entries() -> None:
    generator = np.random.default_rng(0)
    y, p = (generator.random(300) < 0.4).astype(float), generator.integers(1, 20, size=300) / 20  # with ties
    counts = generator.integers(0, 4, size=300)
    often, p_often = np.repeat(y, counts), np.repeat(p, counts)
    found = Labels(np.arange(300), y, p, probabilities=True).metrics()
    assert found["auc"](counts) == pytest.approx(metrics.roc_auc_score(often, p_often))
    assert found["average_precision"](counts) == pytest.approx(metrics.average_precision_score(often, p_often))
    assert found["log_loss"](counts) == pytest.approx(metrics.log_loss(often, p_often))
    assert Labels(np.arange(300), y, p).metrics()["log_loss"] is None

    y, mean, std = generator.normal(size=(3, 300))
    std = 1.0 + std**2
    found = Values(np.arange(300), y, mean, std, mean - std, mean + std).metrics()
    often, mean_often, std_often = (np.repeat(part, counts) for part in (y, mean, std))
    assert found["rmse"](counts) == pytest.approx(np.sqrt(np.mean((often - mean_often) ** 2)))
    assert found["log_density"](counts) == pytest.approx(norm.logpdf(often, mean_often, std_often).mean())
    assert found["coverage"](counts) == pytest.approx(np.mean(np.abs(often - mean_often) <= std_often))


def test_the_paired_bootstrap_has_the_error_of_a_mean_difference() -> None:
    generator, n = np.random.default_rng(0), 400
    shared, own, other = generator.normal(size=(3, n)) * [[10.0], [1.0], [1.0]]
    ours, theirs = recipe_summary.average(shared + own), recipe_summary.average(shared + other)
    ids, expected = np.arange(n), (own - other).std() / np.sqrt(n)
    one = recipe_summary.paired_error([(ids, ours)], [theirs], 2000)
    assert one == pytest.approx(expected, rel=0.1)
    # The same entries under two seeds are no further evidence, others are.
    same = recipe_summary.paired_error([(ids, ours), (ids, ours)], [theirs, theirs], 2000)
    assert same == pytest.approx(expected, rel=0.1)
    apart = recipe_summary.paired_error([(ids, ours), (ids + n, ours)], [theirs, theirs], 2000)
    assert apart == pytest.approx(expected / np.sqrt(2.0), rel=0.1)


def test_a_row_is_compared_with_the_best_other_on_the_same_entries() -> None:
    generator, n = np.random.default_rng(0), 500
    y = generator.normal(size=n)

    def cell(noise: float, first: int = 0) -> Cell:
        return Cell(Values(np.arange(first, first + n), y, y + noise * generator.normal(size=n)))

    cells = {
        "default normal": {0: cell(0.1), 1: cell(0.1)},
        "default quick": {0: cell(0.01), 1: cell(0.01)},  # no rival
        "additive": {0: cell(0.9), 1: cell(0.9)},
        "CP-2": {0: cell(0.3), 1: cell(0.3)},
        "FM 8": {0: cell(0.01)},  # of one seed alone
        "FM 16": {0: cell(0.01, first=1), 1: cell(0.01)},  # other entries
    }
    runs = [{"row": row, "entries": 9 * n, "seconds": 2.0} for row in cells]
    found = recipe_summary.compare("default normal", cells, runs, replicates=50)
    rmse = found["comparisons"]["rmse"]
    assert rmse["best"] == "CP-2"
    assert rmse["difference"] == pytest.approx(0.2, abs=0.03)
    assert set(found["differences"]) == {"additive", "CP-2"}
    assert found["missing"] == ["FM 8", "FM 16"]
    targets = recipe_summary.targets({"alog": found})
    assert targets["better by more than two errors"]["holds"]
    assert targets["never behind additive biases"]["holds"]
    assert targets["quick within 5 s up to 20,000 entries"]["holds"]
    assert targets["95% intervals hold 92 to 98%"]["holds"] is None
    worse = recipe_summary.targets({"alog": recipe_summary.compare("additive", cells, runs, replicates=50)})
    assert worse["never behind by more than .01 AUC or 3% RMSE"]["not"] == ["alog"]


def test_the_study_of_the_recipe_measures_once_and_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data: dict[str, Split] = {
        "enron": synthetic((20, 15, 10), 600, binary=True),
        "serology": synthetic((20, 15, 10), 600),
    }
    monkeypatch.setattr(recipe.datasets, "load", lambda name, fold: data[name])
    monkeypatch.setitem(recipe.MANY, "enron", lambda ones: 300)
    common = ["--cache", str(tmp_path / "cache"), "--results", str(tmp_path)]
    rows = ["--rows", "additive", "--rows", "popularity", "--rows", "counts logistic"]
    command = ["run", "--data", "enron", "--data", "serology", *rows, "--seeds", "0,1", *common]
    done = CliRunner().invoke(recipe.main, command, catch_exceptions=False)
    assert len(done.output.splitlines()) == 10  # values have no logistic regression
    runs = recipe.read(tmp_path)["runs"]
    assert {run["row"] for run in runs if run["data"] == "serology"} == {"additive", "popularity"}
    assert (runs[0]["entries"], runs[0]["held_out"]) == (432, 48)
    assert CliRunner().invoke(recipe.main, command, catch_exceptions=False).output == ""

    task = recipe.problem("enron", 0)
    known = {tuple(cell) for cell in data["enron"].train.indices.tolist()}
    zeros = task.many[task.many.values == 0]
    assert len(zeros) == 300
    assert not known & {tuple(cell) for cell in zeros.indices.tolist()}
    _, cell = recipe.measure(task, "additive")
    cell.save(tmp_path / "cell.npz")
    assert Cell.load(tmp_path / "cell.npz").scores() == cell.scores()

    summary = ["summary", "--row", "additive", "--replicates", "20", *common]
    assert "FAILS" in CliRunner().invoke(recipe.main, summary, catch_exceptions=False).output
    found = recipe.read(tmp_path)
    assert found["runs"] == runs
    assert set(found["summary"]["tensors"]["enron"]["comparisons"]) == {
        "auc",
        "average_precision",
        "average_precision_many",
        "log_loss",
    }
