"""Runs that are logged to a real MLflow server: everything is there, once, and in the run that it belongs to."""

import importlib.metadata
import json
import math
import os
import platform
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from logged_runs import SMALL, run_of, steps_of, wait_for
from servers import Server, tool
from small_tensor import make_entries

from gptf_gpytorch import FittedModel, InputError, MLflowTracker, NumericalError, Tracker, fit
from gptf_gpytorch.data import read
from gptf_gpytorch.tracking.journal import Journal
from gptf_gpytorch.training.problem import digest


def test_a_run_holds_config_tags_and_the_data_set(logged: Any) -> None:
    run = logged.run
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "a run"
    assert logged.client.get_experiment(run.info.experiment_id).name == "first"
    assert set(run.data.params) == set(logged.result.fitted.config.to_dict())
    assert run.data.params["rank"] == "2"
    tags = run.data.tags
    assert (tags["shape"], tags["modes"], tags["workers"]) == ("15 x 12 x 10", "user, item, day", "1")
    assert (tags["likelihood"], tags["team"], tags["version.torch"]) == ("gaussian", "ads", torch.__version__)
    assert tags["gptf.reason"] == logged.result.reason
    (dataset,) = run.inputs.dataset_inputs
    assert dataset.dataset.name == "train.csv"
    assert json.loads(dataset.dataset.profile) == {"entries": 600, "modes": {"user": 15, "item": 12, "day": 10}}
    assert json.loads(dataset.dataset.source) == {"uri": str(logged.data.resolve())}
    assert digest(read(logged.data)).startswith(dataset.dataset.digest)
    assert (tags["host"], tags["version.gpytorch"]) == (platform.node(), importlib.metadata.version("gpytorch"))
    assert tags["version.gptf_gpytorch"] == importlib.metadata.version("gptf_gpytorch")
    with suppress(importlib.metadata.PackageNotFoundError):
        assert tags["version.horovod"] == importlib.metadata.version("horovod")
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    assert tags.get("mlflow.source.git.commit", "") == head.stdout.strip()


def test_every_number_of_every_step_is_there_once(logged: Any) -> None:
    run_id, steps = logged.run.info.run_id, logged.result.history.steps
    assert len(steps) == 6
    for name in ("bound", "gradient_norm", "noise", "held_out", "seconds", "entries_per_second"):
        wanted = [(step.iteration, getattr(step, name)) for step in steps]
        assert steps_of(logged.client, run_id, name) == wanted, name
    for name in steps[0].terms:
        assert steps_of(logged.client, run_id, f"term.{name}") == [(s.iteration, s.terms[name]) for s in steps]
    metrics = logged.run.data.metrics
    assert metrics["final_bound"] == logged.result.bound
    assert math.isfinite(metrics["held_out_rmse"])


def test_labels_have_passes_of_lambda_curves_and_scores(labels: Any) -> None:
    run, steps = labels.run, labels.result.history.steps
    wanted = [(step.iteration, step.lambda_passes) for step in steps]
    assert steps_of(labels.client, run.info.run_id, "lambda_passes") == wanted
    figures = {Path(found.path).name for found in labels.client.list_artifacts(run.info.run_id, "figures")}
    assert {"bound.png", "ranking.png", "reliability.png"} <= figures
    assert {"held_out_auc", "held_out_log_loss", "held_out_ece"} <= set(run.data.metrics)


def test_figures_config_and_environment_are_artifacts(logged: Any) -> None:
    run_id = logged.run.info.run_id
    figures = {Path(found.path).name for found in logged.client.list_artifacts(run_id, "figures")}
    assert figures == {"bound.png", "predicted.png", "relevance.png", "factors-0.png", "factors-1.png", "factors-2.png"}
    assert {"config.json", "environment.txt"} <= {found.path for found in logged.client.list_artifacts(run_id)}


def test_starts_are_nested_runs(logged: Any) -> None:
    run = logged.run
    children = logged.client.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
    assert sorted(child.data.params["seed"] for child in children) == ["0", "1"]
    assert all(child.info.status == "FINISHED" and "bound" in child.data.metrics for child in children)


def test_the_model_is_registered_with_its_alias(logged: Any) -> None:
    version = logged.client.get_model_version_by_alias("served", "champion")
    assert version.run_id == logged.run.info.run_id


def test_a_failed_run_ends_failed_with_its_reason(client: Any, tmp_path: Path) -> None:
    class Breaks(Tracker):
        def step(self, record: Any) -> None:
            raise NumericalError("The bound must be a number. Got none.")

    tracker = MLflowTracker()
    with pytest.raises(NumericalError):
        fit(make_entries(200), **SMALL, tracker=[tracker, Breaks()], output=tmp_path / "run")
    run = client.get_run(run_of(tracker))
    assert run.info.status == "FAILED"
    assert "The bound must be a number" in run.data.tags["gptf.reason"]


def test_a_killed_process_leaves_a_failed_run(client: Any, csv: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    command = [tool("gptf"), "train", csv, "--output", output, "--track", "mlflow"]
    command += ["--method", "paper", "--max-iterations", "100000"]
    command += ["--tolerance", "0", "--patience", "0", "--quiet"]
    process = subprocess.Popen(list(map(str, command)))
    for _ in range(900):
        journals = Journal.all(output)
        if journals and journals[-1].sent["run_id"]:
            break
        time.sleep(0.1)
    process.kill()
    process.wait()
    journal = Journal.all(output)[-1]
    for _ in range(900):
        run = client.get_run(journal.sent["run_id"])
        if run.info.status == "FAILED" and not journal.waiting:
            break
        time.sleep(0.1)
    assert run.info.status == "FAILED"
    assert "killed" in run.data.tags["gptf.reason"]


def test_runs_on_the_same_entries_keep_what_is_their_own(client: Any, csv: Path, tmp_path: Path) -> None:
    """MLflow has one data set for both."""
    import mlflow

    other = tmp_path / csv.name
    shutil.copy(csv, other)
    found = []
    for source, validation, reading in ((csv, 0.1, {}), (other, 0.3, {"ids": "string"})):
        tracker = MLflowTracker("twice", source=source, reading=reading)
        fit(read(source, **reading), **SMALL, validation=validation, tracker=tracker, output=tmp_path / str(validation))
        run = client.get_run(run_of(tracker))
        found.append(mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/data.json"))
    assert [(data["uri"], data["held_out"]) for data in found] == [(str(csv.resolve()), 60), (str(other), 180)]
    assert [data["reading"] for data in found] == [{}, {"ids": "string"}]
    command = [tool("gptf"), "reproduce", run.info.run_id, "--output", tmp_path / "again", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_users_own_run_is_logged_to_and_left_open(client: Any, tmp_path: Path) -> None:
    import mlflow

    mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
    try:
        with mlflow.start_run() as mine:
            mlflow.log_param("mine", 1)
            tracker = MLflowTracker()
            fit(make_entries(200), **SMALL, tracker=tracker)
            assert run_of(tracker) == mine.info.run_id
            assert client.get_run(mine.info.run_id).info.status == "RUNNING"
            assert client.get_run(mine.info.run_id).data.params["rank"] == "2"
    finally:
        mlflow.set_tracking_uri(None)


def test_the_experiment_in_the_environment_is_respected(client: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "by the environment")
    tracker = MLflowTracker()
    fit(make_entries(200), **SMALL, tracker=tracker)
    experiment = client.get_run(run_of(tracker)).info.experiment_id
    assert client.get_experiment(experiment).name == "by the environment"


def test_without_a_server_runs_go_to_a_file(tmp_path: Path, csv: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW")}
    command = [tool("gptf"), "train", csv, "--track", "mlflow", "--output", "run"]
    command += ["--method", "paper", "--max-iterations", "3"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mlflow.db").is_file()
    assert "MLflow has not got" not in done.stderr


def test_a_leftover_mlruns_is_explained_on_one_line(tmp_path: Path, csv: Path) -> None:
    (tmp_path / "mlruns" / "0").mkdir(parents=True)
    (tmp_path / "mlruns" / "0" / "meta.yaml").write_text("name: Default\nexperiment_id: '0'\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW")}
    command = [tool("gptf"), "train", csv, "--track", "mlflow", "--output", "run"]
    command += ["--method", "paper", "--max-iterations", "3"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "mlruns" in line]
    assert "mv mlruns mlruns.old" in line
    assert "gptf sync run" in line
    (tmp_path / "mlruns").rename(tmp_path / "mlruns.old")
    subprocess.run([tool("gptf"), "sync", "run"], cwd=tmp_path, env=environment, check=True)


def test_the_command_line_registers_with_an_alias(client: Any, csv: Path, tmp_path: Path) -> None:
    command = [tool("gptf"), "train", csv, "--output", tmp_path / "run"]
    command += ["--method", "paper", "--max-iterations", "2", "--inducing", "10"]
    command += ["--track", "mlflow", "--register", "typed", "--alias", "challenger", "--quiet"]
    subprocess.run(command, check=True)
    wait_for(Journal.all(tmp_path / "run")[-1])
    version = client.get_model_version_by_alias("typed", "challenger")
    assert version.run_id == Journal.all(tmp_path / "run")[-1].sent["run_id"]


def test_an_alias_needs_a_name() -> None:
    with pytest.raises(InputError, match=r"An alias is that of a registered model. Got 'x' without"):
        MLflowTracker(alias="x")


def test_flags_of_tracking_need_tracking(tmp_path: Path, csv: Path) -> None:
    done = subprocess.run([tool("gptf"), "train", csv, "--register", "x"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "--register is for runs that are logged. Got it without --track mlflow." in done.stderr


def test_a_run_is_reproduced_from_what_mlflow_has(logged: Any, server: Server, tmp_path: Path) -> None:
    environment = {**os.environ, "MLFLOW_TRACKING_URI": server.uri}
    command = [tool("gptf"), "reproduce", logged.run.info.run_id, "--output", tmp_path / "again", "--quiet"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the same" in done.stdout


def test_a_sweep_is_a_table_and_nested_runs(server: Server, client: Any, csv: Path, tmp_path: Path) -> None:
    command = [tool("gptf"), "sweep", csv, "--method", "paper"]
    command += ["--rank", "1", "--rank", "2", "--kernel", "rbf", "--kernel", "matern52"]
    command += ["--inducing", "10", "--max-iterations", "3", "--output", tmp_path / "sweep", "--quiet", "--json"]
    command += ["--track", "mlflow", "--experiment", "swept"]
    first = subprocess.run(command, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    rows = json.loads(first.stdout)
    assert [row["held_out"] for row in rows] == sorted((row["held_out"] for row in rows), reverse=True)
    runs = client.search_runs([client.get_experiment_by_name("swept").experiment_id])
    (parent,) = [run for run in runs if run.info.run_name == "sweep" or "swept_rank" in run.data.params]
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert {(run.data.params["rank"], run.data.params["kernel"]) for run in children} == {
        (rank, kernel) for rank in ("1", "2") for kernel in ("rbf", "matern52")
    }
    assert parent.data.metrics["best_held_out"] == pytest.approx(rows[0]["held_out"])
    again = subprocess.run(command, capture_output=True, text=True)
    assert json.loads(again.stdout) == rows  # and nothing was trained again


@pytest.mark.skipif(not tool("horovodrun").exists(), reason="Horovod is not installed")
def test_of_two_workers_one_speaks(client: Any, csv: Path, tmp_path: Path) -> None:
    command = [tool("horovodrun"), "-np", "2", "--gloo", tool("gptf"), "train", csv, "--output", tmp_path / "run"]
    command += ["--effort", "quick", "--pairs", "1", "--products", "1", "--sweeps", "9", "--samples", "3"]
    command += ["--track", "mlflow", "--experiment", "two"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (journal,) = Journal.all(tmp_path / "run")
    wait_for(journal)
    runs = client.search_runs([client.get_experiment_by_name("two").experiment_id])
    (run,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert (run.info.status, run.data.tags["workers"]) == ("FINISHED", "2")
    history = FittedModel.load(tmp_path / "run").history
    wanted = [(record["iteration"], record["noise"]) for record in history["trace"]]
    assert steps_of(client, run.info.run_id, "noise") == wanted
    assert [step for step, _ in wanted] == list(range(1, int(run.data.metrics["final_steps"]) + 1))
    children = [child for child in runs if child.data.tags.get("mlflow.parentRunId") == run.info.run_id]
    assert sorted(child.info.run_name for child in children) == sorted(
        f"race: {row['name']}" for row in history["race"]
    )


def test_a_sweep_that_is_repeated_keeps_its_parent(client: Any, csv: Path, tmp_path: Path) -> None:
    command = [tool("gptf"), "sweep", csv, "--method", "paper"]
    command += ["--rank", "1", "--rank", "2", "--inducing", "10", "--max-iterations", "3"]
    command += ["--output", tmp_path / "sweep", "--quiet", "--track", "mlflow", "--experiment", "repeated"]
    for _ in range(2):
        subprocess.run(command, check=True, capture_output=True)
    runs = client.search_runs([client.get_experiment_by_name("repeated").experiment_id])
    (parent,) = [run for run in runs if "swept_rank" in run.data.params]
    assert (len(runs), parent.info.status) == (3, "FINISHED")
    refused = subprocess.run([*command, "--register", "x"], capture_output=True, text=True)
    assert "--register is for one model" in refused.stderr
