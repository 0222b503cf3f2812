"""`mlflow run ./mlflow`: what an entry point finds is in the run that MLflow made for it."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from servers import ROOT, Server, free_port, tool


def project(server: Server, entry: str, where: Path = ROOT, **parameters: object) -> None:
    """Run an entry point in an experiment of its name, or of the folder's."""
    path = f"{tool('mlflow').parent}{os.pathsep}{os.environ['PATH']}"
    command = [tool("mlflow"), "run", "./mlflow", "-e", entry, "--env-manager", "local"]
    command += ["--experiment-name", f"project {entry if where == ROOT else where.name}"]
    command += [word for name, value in parameters.items() for word in ("-P", f"{name}={value}")]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": server.uri, "PATH": path}
    done = subprocess.run(command, env=environment, cwd=where, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def its_run(client: Any, entry: str, where: Path = ROOT) -> Any:
    """The run, when all was sent: a busy server hears the rest from a process that stays."""
    for _ in range(600):
        name = f"project {entry if where == ROOT else where.name}"
        runs = client.search_runs([client.get_experiment_by_name(name).experiment_id])
        (run,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)  # starts are nested
        if "gptf.reason" in run.data.tags:
            break
        time.sleep(0.1)
    assert run.info.status == "FINISHED"
    assert run.data.tags["mlflow.project.entryPoint"] == entry
    return run


def test_train(server: Server, client: Any, csv: Path, tmp_path: Path) -> None:
    project(server, "train", data=csv, output=tmp_path / "run", rank=2, inducing=10, max_iterations=3)
    run = its_run(client, "train")
    assert run.data.params["max_iterations"] == "3"
    assert "final_bound" in run.data.metrics


def test_train_as_it_is(server: Server, client: Any, tmp_path: Path) -> None:
    """Without parameters: the example that lies there."""
    shutil.copytree(ROOT / "mlflow", tmp_path / "mlflow", ignore=shutil.ignore_patterns("runs"))
    project(server, "train", tmp_path)
    run = its_run(client, "train", tmp_path)
    (dataset,) = run.inputs.dataset_inputs
    assert dataset.dataset.name == "example.csv"
    assert run.data.metrics["held_out_rmse"] < 0.5  # its values have a standard deviation of 0.91


def test_evaluate(server: Server, client: Any, labels: Any) -> None:
    project(server, "evaluate", model=labels.output, data=labels.data)
    run = its_run(client, "evaluate")
    shown = subprocess.run(
        [tool("gptf"), "evaluate", labels.output, labels.data, "--json"], capture_output=True, text=True, check=True
    )
    assert run.data.metrics == {f"test_{name}": value for name, value in json.loads(shown.stdout).items()}
    assert run.data.tags["trained_in"] == labels.run.info.run_id
    (dataset,) = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.tags[0].value) == ("train.csv", "evaluation")
    figures = {Path(found.path).name for found in client.list_artifacts(run.info.run_id, "figures")}
    assert figures == {"ranking.png", "reliability.png"}


def test_reproduce(server: Server, client: Any, logged: Any, tmp_path: Path) -> None:
    project(server, "reproduce", run=logged.run.info.run_id, output=tmp_path / "again")
    run = its_run(client, "reproduce")
    assert run.data.tags["reproduces"] == logged.run.info.run_id
    assert run.data.metrics["final_bound"] == pytest.approx(logged.result.bound, rel=1e-6)


def test_without_a_project_an_evaluation_is_a_run_of_its_own(client: Any, logged: Any) -> None:
    command = [tool("gptf"), "evaluate", logged.output, logged.data, "--track", "mlflow", "--experiment", "tests"]
    subprocess.run([*command, "--run-name", "on all"], capture_output=True, check=True)
    (run,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert (run.info.run_name, run.info.status) == ("on all", "FINISHED")
    assert run.data.params == {"model": str(logged.output), "data": str(logged.data)}
    assert "test_rmse" in run.data.metrics


def test_an_evaluation_does_not_need_the_server(logged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    command = [tool("gptf"), "evaluate", logged.output, logged.data, "--track", "mlflow"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "rmse" in done.stdout
    assert "Later: gptf sync " in done.stderr
    refused = subprocess.run([*command[:4], "--run-name", "x"], capture_output=True, text=True)
    assert "--run-name is for runs that are logged. Got it without --track mlflow." in refused.stderr
