"""A run that goes on does so where it was logged, and MLflow shows what it goes on with."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from logged_runs import SMALL, run_of, steps_of
from servers import running, tool, tracking_server
from small_tensor import make_entries

from gptf_gpytorch import InterruptedRunError, MLflowTracker, Tracker, fit
from gptf_gpytorch.data import read


class Stops(Tracker):
    """Asks the run to stop after a step."""

    def __init__(self, after: int) -> None:
        self.after = after

    def step(self, record: Any) -> None:
        if record["iteration"] == self.after:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_resumed_run_goes_on_in_the_same_run(client: Any, tmp_path: Path) -> None:
    entries, output = make_entries(300), tmp_path / "run"
    first = MLflowTracker()
    with pytest.raises(InterruptedRunError):
        fit(entries, **SMALL, tracker=[Stops(3), first], output=output)
    run_id = run_of(first)
    assert client.get_run(run_id).info.status == "KILLED"
    assert "Stopped by a signal" in client.get_run(run_id).data.tags["gptf.reason"]
    second = MLflowTracker()
    result = fit(entries, **SMALL, tracker=second, output=output, resume=True)
    assert run_of(second) == run_id
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert not any(name.startswith("now.") for name in run.data.tags)
    assert steps_of(client, run_id, "bound") == [(step.iteration, step.bound) for step in result.history.steps]


def test_what_a_server_missed_is_sent_when_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    entries, output, own = make_entries(300), tmp_path / "run", tracking_server(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", own.uri)
    first = MLflowTracker()
    with pytest.raises(InterruptedRunError):
        fit(entries, **SMALL, tracker=[Stops(3), first], output=output)
    assert first.journal.sent["run_id"] is None
    with running(own):
        second = MLflowTracker()
        result = fit(entries, **SMALL, tracker=second, output=output, resume=True)
        client, run_id = MlflowClient(own.uri), run_of(second)
        assert steps_of(client, run_id, "bound") == [(step.iteration, step.bound) for step in result.history.steps]
        assert [run.info.status for run in client.search_runs(["0"])] == ["FINISHED"]


def test_other_options_are_shown_and_reproduced(client: Any, csv: Path, tmp_path: Path) -> None:
    """MLflow never changes a param: what a run goes on with is a tag, and the configuration that reproduces it."""
    import mlflow

    entries = read(csv)
    for steps in (3, 8, 5):
        tracker = MLflowTracker(source=csv)
        config = {**SMALL, "max_iterations": steps, "patience": 0}
        result = fit(entries, **config, tracker=tracker, output=tmp_path / "run", resume=steps > 3)
        run = client.get_run(run_of(tracker))
        assert run.data.params["max_iterations"] == "3"
        assert run.data.tags.get("now.max_iterations") == (None if steps == 3 else str(steps))
        assert run.data.metrics["final_bound"] == result.bound
        if steps == 8:
            models = client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run.info.run_id}'")
            last = max(models, key=lambda model: model.creation_timestamp)
            assert last.params["max_iterations"] == "8"
            folder = Path(
                mlflow.artifacts.download_artifacts(f"models:/{last.model_id}", dst_path=str(tmp_path / "it"))
            )
            (weights,) = folder.rglob("*.safetensors")
            (saved,) = (tmp_path / "run" / "model").rglob("*.safetensors")
            assert weights.read_bytes() == saved.read_bytes()
            command = [tool("gptf"), "reproduce", run.info.run_id, "--output", tmp_path / "again", "--quiet"]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr


def test_a_second_run_in_the_users_keeps_its_options_as_tags(client: Any) -> None:
    import mlflow

    mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
    try:
        with mlflow.start_run() as mine:
            for rank in (1, 2):
                tracker = MLflowTracker()
                fit(make_entries(200), **{**SMALL, "rank": rank}, tracker=tracker)
                assert run_of(tracker) == mine.info.run_id
    finally:
        mlflow.set_tracking_uri(None)
    run = client.get_run(mine.info.run_id)
    assert (run.data.params["rank"], run.data.tags["now.rank"]) == ("1", "2")


def test_a_run_that_its_owner_has_ended_is_ended_when_it_goes_on(client: Any, tmp_path: Path) -> None:
    import mlflow

    entries, output = make_entries(300), tmp_path / "run"
    mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
    try:
        with pytest.raises(InterruptedRunError), mlflow.start_run() as mine:
            fit(entries, **SMALL, tracker=[Stops(2), first := MLflowTracker()], output=output)
        assert run_of(first) == mine.info.run_id
        assert client.get_run(mine.info.run_id).info.status == "FAILED"  # as its owner says
        with mlflow.start_run(run_id=mine.info.run_id), pytest.raises(InterruptedRunError):
            fit(entries, **SMALL, tracker=[Stops(4), second := MLflowTracker()], output=output, resume=True)
        assert second.journal.lent
        run_of(second)
        assert client.get_run(mine.info.run_id).info.status == "FINISHED"  # again as its owner says
    finally:
        mlflow.set_tracking_uri(None)
    third = MLflowTracker()
    fit(entries, **SMALL, tracker=third, output=output, resume=True)
    assert not third.journal.lent
    assert run_of(third) == mine.info.run_id
    run = client.get_run(mine.info.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["final_steps"] == 6
