"""What the user has chosen in MLflow holds: the store, the experiment, the run that is active, and what is in it."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logged_runs import steps_of
from servers import ROOT, Server, free_port, proxy, running, tool, tracking_server
from small_tensor import make_entries

from gptf_gpytorch import MLflowTracker, fit

SMALL: dict[str, Any] = {"method": "paper", "rank": 2, "inducing": 15, "max_iterations": 3}


@pytest.fixture
def mlflow(server: Server, client: Any) -> Iterator[Any]:
    """MLflow in this process, set to the server."""
    import mlflow

    mlflow.set_tracking_uri(server.uri)
    yield mlflow
    mlflow.set_tracking_uri(None)
    mlflow.tracking.fluent._active_experiment_id = None
    os.environ.pop("MLFLOW_EXPERIMENT_ID", None)


def test_folds_are_nested_as_the_readme_says(client: Any, csv: Path, tmp_path: Path) -> None:
    text = (ROOT / "mlflow" / "README.md").read_text()
    [block] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "ratings.csv").write_text("".join(csv.read_text().splitlines(keepends=True)[:200]))
    environment = {**os.environ, "MLFLOW_EXPERIMENT_NAME": "folds"}
    subprocess.run([sys.executable, "-c", block], cwd=tmp_path, env=environment, check=True)
    runs = client.search_runs([client.get_experiment_by_name("folds").experiment_id])
    (parent,) = [run for run in runs if run.info.run_name == "five folds"]
    folds = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(run.info.run_name for run in folds) == [f"fold {number}" for number in range(1, 6)]
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert not parent.data.params
    assert [step for step, _ in steps_of(client, parent.info.run_id, "rmse")] == [1, 2, 3, 4, 5]


def test_a_model_of_the_users_in_the_same_run_is_not_taken_for_ours(mlflow: Any, client: Any) -> None:
    with mlflow.start_run() as mine:
        theirs = client.create_logged_model(mine.info.experiment_id, name="mine", source_run_id=mine.info.run_id)
        client.log_outputs(mine.info.run_id, [mlflow.entities.LoggedModelOutput(theirs.model_id, 0)])
        fit(make_entries(200), **SMALL, tracker=MLflowTracker(register="ours"))
    outputs = client.get_run(mine.info.run_id).outputs.model_outputs
    models = {client.get_logged_model(output.model_id).name: output.model_id for output in outputs}
    assert (len(outputs), set(models)) == (2, {"mine", "model"})
    (version,) = client.search_model_versions("name = 'ours'")
    assert version.source.endswith(models["model"])


def test_set_experiment_wins_over_the_environment(mlflow: Any, client: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "by the environment")
    mlflow.set_experiment("by a call")
    tracker = MLflowTracker()
    fit(make_entries(200), **SMALL, tracker=tracker)
    experiment = client.get_run(str(tracker.run_id)).info.experiment_id
    assert client.get_experiment(experiment).name == "by a call"


def test_what_is_sent_later_goes_to_the_store_that_was_set(csv: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW")}
    away = f"http://127.0.0.1:{free_port()}"
    command = [tool("gptf"), "train", csv, "--track", "mlflow", "--output", "run", "--quiet"]
    command += ["--method", "paper", "--max-iterations", "2"]
    subprocess.run(command, cwd=tmp_path, env={**environment, "MLFLOW_TRACKING_URI": away}, check=True)
    done = subprocess.run([tool("gptf"), "sync", "run"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, away in done.stderr) == (1, True)
    assert not (tmp_path / "mlflow.db").exists()


def test_a_model_that_was_cut_off_arrives_whole_and_once(tmp_path: Path, monkeypatch: Any) -> None:
    """kill -9 of the server when it knows of the model and has one of its files."""
    from mlflow.tracking import MlflowClient

    own, output, uploads = tracking_server(tmp_path), tmp_path / "run", []

    def kill(method: str, path: str) -> None:
        if method == "PUT" and "/models/" in path:
            uploads.append(path)
            if len(uploads) == 2:
                own.kill()

    with running(own), proxy(own, kill) as uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
        tracker = MLflowTracker(register="cut", alias="off")
        fit(make_entries(300), **SMALL, tracker=tracker, output=output)
        for _ in range(1200):  # a busy machine sends it when the run has ended
            if own.process is None and tracker.journal.sent["trouble"]:
                break
            time.sleep(0.1)
        assert tracker.trouble is not None
        assert len(uploads) >= 2
        own.start()
        client = MlflowClient(own.uri)
        run = client.get_run(tracker.journal.sent["run_id"])
        assert [model.status for model in client.search_logged_models([run.info.experiment_id])] == ["PENDING"]
        subprocess.run([tool("gptf"), "sync", output], check=True, capture_output=True)
        run = client.get_run(run.info.run_id)
        (model,) = client.search_logged_models([run.info.experiment_id])
        assert [found.model_id for found in run.outputs.model_outputs] == [model.model_id]
        assert model.status == "READY"
        assert "MLmodel" in {file.path for file in client.list_logged_model_artifacts(model.model_id)}
        assert client.get_model_version_by_alias("cut", "off").run_id == run.info.run_id
