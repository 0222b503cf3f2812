"""The tables: every method once, nothing twice, whatever happens in between; and the committed numbers come out again."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pooch")
pytest.importorskip("scipy")
import methods
from plan import Cell, Plan
from run import fitted
from scores import rows, score
from store import RESULTS, Store

from gptf_gpytorch import InputError, NumericalError

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("GPTF_DATA_DIR", ROOT.parent / "shared" / "data"))
HERE = {"machine": "this one"}
PAPER = "ours-lbfgs"
TABLE = """
seed = 0
ranks = [1, 2]
ours = "ours"
[data.synthetic]
folds = [1, 2]
[data.synthetic-binary]
folds = [1]
ranks = [2]
[methods.ours]
inducing = 10
max_iterations = 3
[methods.short]
method = "ours"
data = ["synthetic"]
folds = [1]
inducing = 10
vary.max_iterations = [1, 2]
on.synthetic = {scale = 0.2}
"""


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(TABLE)
    return tmp_path


def run(*arguments: object, cwd: Path, timeout: float = 200, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "experiments" / "run.py", *map(str, arguments)]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{cwd / 'runs.db'}", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=environment)


def test_a_table_is_the_product_of_its_file(configs: Path) -> None:
    plan = Plan.read("small", configs)
    assert [cell.place for cell in plan.cells] == [
        "synthetic/ours/1/1",
        "synthetic/ours/2/1",
        "synthetic/short max_iterations=1/1/1",
        "synthetic/short max_iterations=1/2/1",
        "synthetic/short max_iterations=2/1/1",
        "synthetic/short max_iterations=2/2/1",
        "synthetic/ours/1/2",
        "synthetic/ours/2/2",
        "synthetic-binary/ours/2/1",
    ]
    assert plan.cells[2].options == {"inducing": 10, "max_iterations": 1, "scale": 0.2}
    quick = plan.only(quick=True)
    assert [cell.place for cell in quick.cells] == [
        "synthetic/ours/1/1",
        "synthetic/short max_iterations=1/1/1",
        "synthetic/short max_iterations=2/1/1",
        "synthetic-binary/ours/2/1",
    ]
    assert len(plan.only(labels=["short"], ranks=[2]).cells) == 2
    assert {cell.seed for cell in plan.cells} == {0}
    path = configs / "small.toml"
    path.write_text(
        TABLE.replace("{scale = 0.2}", "{scale = 0.2, vary.max_iterations = [7]}").replace(
            "ranks = [2]", "quick = false"
        )
    )
    changed = Plan.read("small", configs)
    assert [cell.place for cell in changed.cells if "short" in cell.label] == [
        "synthetic/short max_iterations=7/1/1",
        "synthetic/short max_iterations=7/2/1",
    ]
    assert (
        {cell.data for cell in changed.cells} > {cell.data for cell in changed.only(quick=True).cells} == {"synthetic"}
    )
    listed = "vary = [{max_iterations = 1}, {max_iterations = 9, scale = 0.3}]"
    path.write_text(TABLE.replace("vary.max_iterations = [1, 2]", listed))
    points = [cell for cell in Plan.read("small", configs).cells if "short" in cell.label and cell.rank == 1]
    assert [cell.label for cell in points] == ["short max_iterations=1", "short max_iterations=9 scale=0.3"]
    assert [cell.options["scale"] for cell in points] == [0.2, 0.3]
    with pytest.raises(InputError, match=r"--data must be in the table small: synthetic, synthetic-binary. Got alog"):
        plan.only(data=["alog"])


def test_a_row_may_be_repeated_from_several_seeds(configs: Path) -> None:
    sampled = '[methods.default]\nmethod = "sampled"\ndata = ["synthetic"]\nrepeats = 2\n'
    (configs / "small.toml").write_text(TABLE + sampled)
    plan = Plan.read("small", configs).only(labels=["default"])
    places = ["synthetic/default/-/1", "synthetic/default/-/1.1", "synthetic/default/-/2", "synthetic/default/-/2.1"]
    assert [cell.place for cell in plan.cells] == places
    assert [cell.seed for cell in plan.cells] == [0, 1, 0, 1]
    assert [cell.place for cell in plan.only(quick=True).cells] == places[:1]


@pytest.mark.parametrize("table", ["small", "large", "ctr", "scalability", "smoke"])
def test_the_committed_tables_name_methods_and_options_that_exist(table: str) -> None:
    plan = Plan.read(table)
    assert len({cell.key for cell in plan.cells}) == len({cell.place for cell in plan.cells}) == len(plan.cells)
    for cell in plan.cells:
        methods.make(cell.method, cell.options)


def test_the_smoke_table_has_every_method() -> None:
    assert {cell.method for cell in Plan.read("smoke").cells} == set(methods.REGISTRY)


def test_an_unknown_method_or_option_is_named() -> None:
    with pytest.raises(InputError, match=r"A method must be one of sampled, .* Got 'theirs'"):
        methods.make("theirs", {})
    with pytest.raises(InputError, match=r"ours may hold only known keys. Got 'ranks'. Did you mean rank"):
        methods.make("ours", {"ranks": 3})


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(methods.REGISTRY, "cp", "no_such_library:CP")
    with pytest.raises(
        InputError, match=r"cp must find its library. Got no no_such_library: .* -m pip install .*tensorly"
    ):
        methods.make("cp", {})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's own
def test_finished_fits_are_not_done_again_and_runs_are_nested(configs: Path) -> None:
    from mlflow.tracking import MlflowClient

    arguments = ("small", "--configs", configs, "--results", configs / "results")
    first = run(*arguments, "--folds", 1, cwd=configs)
    assert first.returncode == 0, first.stderr
    assert "0 of 7 fits are there" in first.stdout
    path = configs / "results" / "small.json"
    before = json.loads(path.read_text())["cells"]
    again = run(*arguments, cwd=configs)
    assert "7 of 9 fits are there" in again.stdout
    after = json.loads(path.read_text())["cells"]
    assert len(after) == 9
    assert {key: after[key] for key in before} == before  # seconds and all

    client = MlflowClient(f"sqlite:///{configs / 'runs.db'}")
    [experiment] = [found for found in client.search_experiments() if found.name == "paper"]
    runs = client.search_runs([experiment.experiment_id])
    parents = [found for found in runs if "mlflow.parentRunId" not in found.data.tags]
    assert len(parents) == 2
    assert len(runs) == 2 + 9
    assert {found.info.status for found in runs} == {"FINISHED"}
    child = next(found for found in runs if found.info.run_name == "synthetic/ours/2/2")
    assert child.data.tags["mlflow.parentRunId"] in {parent.info.run_id for parent in parents}
    assert child.data.params["inducing"] == "10"
    key = next(key for key in after if key.startswith("synthetic/ours/2/2/"))
    assert child.data.metrics["test_rmse"] == pytest.approx(after[key]["metrics"]["rmse"][0], rel=1e-5)
    assert len(client.get_metric_history(child.info.run_id, "step_bound")) == 3

    (configs / "small.toml").write_text(TABLE.replace("max_iterations = 3", "max_iterations = 4"))
    changed = run(*arguments, "--track", "none", cwd=configs)
    assert "4 of 9 fits are there" in changed.stdout
    replaced = json.loads(path.read_text())["cells"]
    assert len(replaced) == 9
    assert all(replaced[key] == after[key] for key in after if "/short " in key)


def test_a_fit_that_fails_is_named_and_the_others_are_done(configs: Path) -> None:
    (configs / "small.toml").write_text(TABLE + '[methods.broken]\nmethod = "ours"\nscale = -1.0\n')
    done = run("small", "--quick", "--configs", configs, "--results", configs, "--track", "none", cwd=configs)
    assert done.returncode == 1
    assert "2 fits failed: synthetic/broken/1/1, synthetic-binary/broken/2/1" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(json.loads((configs / "small.json").read_text())["cells"]) == 4


def test_what_is_stopped_keeps_what_was_finished(configs: Path) -> None:
    endless = "[methods.ours]\nmax_iterations = 1000000\ntolerance = 0.0\ngradient_tolerance = 0.0\nvalidation = 0.0\n"
    (configs / "small.toml").write_text(
        'seed = 0\nranks = [2]\nours = "ours"\n[data.synthetic]\nfolds = [1]\n'
        f'[methods.short]\nmethod = "ours"\nmax_iterations = 1\n{endless}'
    )
    command = [sys.executable, ROOT / "experiments" / "run.py", "small", "--configs", configs, "--results", configs]
    store = Store(configs, "small")
    with subprocess.Popen([*command, "--track", "none"], cwd=configs, stdout=subprocess.DEVNULL) as process:
        for _ in range(1200):
            if store.cells:
                break
            time.sleep(0.1)
        time.sleep(0.5)
        process.kill()
    [key] = store.cells
    assert key.startswith("synthetic/short/2/1/")


def test_two_processes_that_start_at_once_make_one_database(configs: Path) -> None:
    command = [
        sys.executable,
        ROOT / "experiments" / "run.py",
        "small",
        "--configs",
        configs,
        "--results",
        configs / "r",
    ]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{configs / 'runs.db'}"}
    both = [
        subprocess.Popen([*command, "--only", label, "--quick"], cwd=configs, env=environment, stderr=subprocess.PIPE)
        for label in ("ours", "short")
    ]
    for process in both:
        _, said = process.communicate(timeout=200)
        assert process.returncode == 0, said.decode()
    assert len(Store(configs / "r", "small").cells) == 4


def test_two_processes_may_fill_one_table(tmp_path: Path) -> None:
    one, two = Store(tmp_path, "small"), Store(tmp_path, "small")
    cell = Cell("alog", "ours", 3, 1, "ours", {}, 0)
    one.add(cell, {"seconds": 1.23456789}, HERE)
    two.add(replace(cell, fold=2), {"seconds": 2.0}, HERE)
    one.add(replace(cell, seed=1), {"seconds": 3.0}, HERE)  # another configuration in the same place
    assert sorted(found["seconds"] for found in two.cells.values()) == [2.0, 3.0]
    assert list(two.read()["environments"].values()) == [HERE]
    assert list(tmp_path.iterdir()) == [tmp_path / "small.json"]


def test_means_errors_and_paired_tests() -> None:
    cells = [Cell("alog", label, 3, fold, label, {}, 0) for label in ("ours", "cp") for fold in (1, 2, 3)]
    values = {}
    for cell, value in zip(cells, (1.0, 2.0, 3.0, 1.5, 2.6, 3.4), strict=True):
        values[cell.key] = {"metrics": {"rmse": [value]}, "seconds": 2.0}
    ours, cp = rows(Plan("small", "ours", tuple(cells)), values)
    assert (ours.mean, ours.count, ours.p) == (2.0, 3, None)
    assert ours.error == pytest.approx(1 / np.sqrt(3))
    # differences .5, .6, .4: t = .5 / (.1 / sqrt 3) = 8.66 with 2 degrees of freedom
    assert cp.p == pytest.approx(0.01307, abs=1e-4)
    assert not cp.better
    labels = {key: {**found, "metrics": {"auc": found["metrics"]["rmse"]}} for key, found in values.items()}
    assert rows(Plan("small", "ours", tuple(cells)), labels)[1].better
    half = {key: values[key] for key in list(values)[:5]}  # a fold of cp is missing: pairs are of the other two
    assert rows(Plan("small", "ours", tuple(cells)), half)[1].p == pytest.approx(0.0577, abs=1e-3)


def test_ours_without_a_rank_is_compared_at_every_rank_and_seeds_are_averaged() -> None:
    ours = [Cell("alog", "ours", None, fold, "sampled", {}, seed, seed) for fold in (1, 2, 3) for seed in (0, 1)]
    theirs = [Cell("alog", "cp", rank, fold, "cp", {}, 0) for rank in (3, 5) for fold in (1, 2, 3)]
    values = (0.9, 1.1, 1.8, 2.2, 3.0, 3.0, *(1.5, 2.6, 3.4), *(0.5, 1.4, 2.6))
    cells = {
        cell.key: {"metrics": {"rmse": [value]}, "seconds": 2.0}
        for cell, value in zip([*ours, *theirs], values, strict=True)
    }
    mine, three, five = rows(Plan("small", "ours", (*ours, *theirs)), cells)
    assert (mine.mean, mine.count, mine.p) == (2.0, 3, None)
    assert mine.error == pytest.approx(1 / np.sqrt(3))
    assert (three.better, five.better) == (False, True)
    assert three.p == pytest.approx(0.01307, abs=1e-4)  # as above


def test_scores() -> None:
    y, p = np.array([0.0, 1.0, 1.0, 0.0]), np.array([0.1, 0.9, 0.4, 0.5])
    found = score(y, p, binary=True, probabilities=True)
    assert found["auc"] == 0.75
    assert found["log_loss"] == pytest.approx(-np.mean(np.log([0.9, 0.9, 0.4, 0.5])))
    assert set(score(y, p, binary=True, probabilities=False)) == {"auc", "average_precision"}
    assert score(y, p, binary=False, probabilities=False)["mse"] == pytest.approx(np.mean((y - p) ** 2))
    with pytest.raises(NumericalError, match="4 finite numbers"):
        score(y, np.array([0.1, np.nan, 0.4, 0.5]), binary=True, probabilities=True)


@pytest.mark.timeout(900)  # every method once
def test_smoke(tmp_path: Path) -> None:
    """Every method on synthetic values and labels; ours predicts them better than what knows only means."""
    horovod = Path(sys.executable).with_name("horovodrun").exists()
    labels = {cell.label for cell in Plan.read("smoke").cells} - (
        set() if horovod else {"ours-horovod", "paper-horovod"}
    )
    only = [word for label in sorted(labels) for word in ("--only", label)]
    began = time.monotonic()
    done = run("smoke", *only, "--results", tmp_path, cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 240  # two minutes on two idle cores
    plan = Plan.read("smoke")
    found = {(row.data, row.label): row.mean for row in rows(plan, Store(tmp_path, "smoke").cells)}
    for label in ("ours", "ours-lbfgs"):
        assert found["synthetic", label] < 0.8 * found["synthetic", "mean"]
        assert found["synthetic-binary", label] > max(0.7, found["synthetic-binary", "popularity"])


@pytest.mark.parametrize("data", ["alog", "enron"])
def test_a_committed_number_comes_out_again(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (DATA / data).is_dir():
        pytest.skip(f"{data} is not here: set GPTF_DATA_DIR")
    monkeypatch.setenv("GPTF_DATA_DIR", str(DATA))
    plan = Plan.read("small")
    cells = Store(RESULTS, "small").cells
    cell = next(c for c in plan.cells if (c.data, c.label, c.rank, c.fold) == (data, PAPER, 3, 1))
    assert cell.key in cells, f"run it: python experiments/run.py small --only {PAPER} --data {data}"
    metric: Any = "auc" if data == "enron" else "rmse"
    [row] = [row for row in rows(plan, cells) if (row.data, row.label, row.rank) == (data, PAPER, 3)]
    assert row.error is not None
    again, _ = fitted(cell)
    assert again["metrics"][metric][0] == pytest.approx(cells[cell.key]["metrics"][metric][0], abs=row.error)
