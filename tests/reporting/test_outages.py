"""A tracking server that dies, is slow or is not there: nothing is lost, and nothing is there twice."""

import subprocess
import time
from pathlib import Path
from typing import Any

from logged_runs import SMALL, steps_of
from servers import proxy, running, tool, tracking_server
from small_tensor import make_entries

from gptf_gpytorch import MLflowTracker, Tracker, fit


def test_a_server_that_dies_in_the_middle_loses_nothing(csv: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from mlflow.tracking import MlflowClient

    output, own = tmp_path / "run", tracking_server(tmp_path)

    class Kills(Tracker):
        def step(self, record: Any) -> None:
            if record["iteration"] == 5:
                journal, patience = tracker.journal, time.monotonic() + 60
                while not journal.sent["start"] and time.monotonic() < patience:
                    time.sleep(0.05)  # until the server has heard something
                own.kill()

    tracker = MLflowTracker("lost")
    with running(own):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", own.uri)
        result = fit(make_entries(300), **{**SMALL, "max_iterations": 12}, tracker=[tracker, Kills()], output=output)
        assert result.history.steps[-1].iteration == 12
        assert tracker.trouble is not None
        assert f"gptf sync {output}" in tracker.trouble
        failed = subprocess.run([tool("gptf"), "sync", output], capture_output=True, text=True)
        assert failed.returncode == 1
        assert failed.stderr.count("\n") == 1
        own.start()
        for _ in range(2):  # the second time there is nothing left
            done = subprocess.run([tool("gptf"), "sync", output], capture_output=True, text=True, check=True)
        assert ": 0 records sent" in done.stderr
        client, run_id = MlflowClient(own.uri), tracker.journal.sent["run_id"]
        assert steps_of(client, run_id, "bound") == [(step.iteration, step.bound) for step in result.history.steps]
        assert client.get_run(run_id).info.status == "FINISHED"
        assert len(client.search_runs([client.get_experiment_by_name("lost").experiment_id])) == 1


def test_what_a_slow_server_makes_a_second_time_is_deleted(tmp_path: Path, monkeypatch: Any) -> None:
    """A request that nobody waits for any more may still be carried out."""
    from mlflow.tracking import MlflowClient

    own, asked = tracking_server(tmp_path), []

    def late(method: str, path: str) -> None:
        if path.endswith("/runs/create"):
            asked.append(path)
            if len(asked) == 1:
                time.sleep(12.0)

    with running(own), proxy(own, late) as uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        tracker, client = MLflowTracker("late"), MlflowClient(own.uri)

        class Waits(Tracker):
            """Until both have come."""

            def step(self, record: Any) -> None:
                patience = time.monotonic() + 60
                while record["iteration"] == 3 and time.monotonic() < patience:
                    found = client.get_experiment_by_name("late")
                    if found and len(client.search_runs([found.experiment_id])) == 2:
                        return
                    time.sleep(0.1)

        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")  # as the sender's processes are told
        fit(make_entries(300), **SMALL, tracker=[tracker, Waits()], output=tmp_path / "run")
        for _ in range(30):  # a server so slow may be too slow once more
            done = subprocess.run([tool("gptf"), "sync", tmp_path / "run"], capture_output=True, text=True)
            if done.returncode == 0:
                break
        assert len(asked) >= 2
        (run,) = client.search_runs([client.get_experiment_by_name("late").experiment_id])
        assert (run.info.run_id, run.info.status) == (tracker.journal.sent["run_id"], "FINISHED")


def test_a_sweep_without_a_server_is_sent_later(csv: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from mlflow.tracking import MlflowClient

    own, output = tracking_server(tmp_path), tmp_path / "sweep"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", own.uri)
    command = [tool("gptf"), "sweep", csv, "--method", "paper"]
    command += ["--rank", "1", "--rank", "2", "--inducing", "10", "--max-iterations", "3"]
    command += ["--output", output, "--quiet", "--track", "mlflow", "--experiment", "later"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"MLflow has not got all of 3 runs. Later: gptf sync {output}" in done.stderr
    with running(own):
        for _ in range(2):  # the second time there is nothing left
            done = subprocess.run([tool("gptf"), "sync", output], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        assert done.stderr.count(": 0 records sent") == 3
        client = MlflowClient(own.uri)
        runs = client.search_runs([client.get_experiment_by_name("later").experiment_id])
        (parent,) = [run for run in runs if "swept_rank" in run.data.params]
        children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
        assert sorted(run.data.params["rank"] for run in children) == ["1", "2"]
        assert {run.info.status for run in runs} == {"FINISHED"}
