"""What the machine did meanwhile: sampled beside training, kept while the server is away, and sent once."""

import importlib.util
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from logged_runs import SMALL, run_of, steps_of
from servers import running, tool, tracking_server
from small_tensor import make_entries

from gptf_gpytorch import InputError, MLflowTracker, Tracker, fit

CPU = "system/cpu_utilization_percentage"


class Waits(Tracker):
    """Lets a step last until something holds."""

    def __init__(self, step: int, until: Any) -> None:
        self.at, self.until = step, until

    def step(self, record: Any) -> None:
        patience = time.monotonic() + 60
        while record["iteration"] == self.at and not self.until() and time.monotonic() < patience:
            time.sleep(0.05)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")


def samples(tracker: MLflowTracker) -> list[dict[str, Any]]:
    return [record for record, _ in tracker.journal.records() if record["kind"] == "system"]


def test_they_come_on_request(client: Any, tmp_path: Path) -> None:
    tracker, other = MLflowTracker(system_metrics=True), MLflowTracker()
    watching = [tracker, Waits(3, lambda: len(samples(tracker)) >= 3)]
    fit(make_entries(200), **SMALL, tracker=watching, output=tmp_path / "run")
    metrics = client.get_run(run_of(tracker)).data.metrics
    for name in ("cpu_utilization_percentage", "system_memory_usage_megabytes", "network_receive_megabytes"):
        assert f"system/{name}" in metrics
    assert client.get_run(run_of(tracker)).info.status == "FINISHED"
    fit(make_entries(200), **SMALL, tracker=other)
    assert not any(name.startswith("system/") for name in client.get_run(run_of(other)).data.metrics)


def test_a_run_shorter_than_the_interval_has_a_sample(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "600")
    tracker = MLflowTracker(system_metrics=True)
    fit(make_entries(200), **SMALL, tracker=tracker)
    assert [step for step, _ in steps_of(client, run_of(tracker), CPU)] == [0]


def test_those_of_an_outage_are_sent_later_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    own, output = tracking_server(tmp_path), tmp_path / "run"
    tracker = MLflowTracker(system_metrics=True)

    def kill() -> bool:
        if not tracker.journal.sent["start"] or len(samples(tracker)) < 3:
            return False
        own.kill()
        killed.append(int(1000 * time.time()))
        return True

    killed: list[int] = []
    away = Waits(4, lambda: sum(record["time"] > killed[0] for record in samples(tracker)) >= 5)
    with running(own):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", own.uri)
        fit(make_entries(200), **SMALL, tracker=[tracker, Waits(3, kill), away], output=output)
        assert tracker.trouble is not None
        own.start()
        for _ in range(2):  # the second time there is nothing left, and syncing takes no samples
            subprocess.run([tool("gptf"), "sync", output], check=True, capture_output=True)
        client = MlflowClient(own.uri)
        found = client.get_metric_history(run_of(tracker), CPU)
        assert sum(metric.timestamp > killed[0] for metric in found) >= 5
        wanted = [(record["step"], record["time"], record["values"][CPU]) for record in samples(tracker)]
        assert sorted((metric.step, metric.timestamp, metric.value) for metric in found) == wanted
        assert [step for step, _, _ in wanted] == list(range(len(wanted)))


def test_a_resumed_run_goes_on_counting(client: Any, tmp_path: Path) -> None:
    counts = []
    for steps in (3, 6):
        tracker = MLflowTracker(system_metrics=True)
        watching = [tracker, Waits(steps, partial(lambda it, n: len(samples(it)) >= n, tracker, steps))]
        config = {**SMALL, "max_iterations": steps}
        fit(make_entries(200), **config, tracker=watching, output=tmp_path / "run", resume=steps == 6)
        found = [step for step, _ in steps_of(client, run_of(tracker), CPU)]
        assert found == list(range(len(found)))
        counts.append(len(found))
    assert counts[1] > counts[0]
    assert [step for step, _ in steps_of(client, run_of(tracker), "bound")] == [1, 2, 3, 4, 5, 6]


def test_they_need_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "psutil" else find(name))
    with pytest.raises(InputError, match=r"System metrics need psutil\. Got none: .*pip install"):
        MLflowTracker(system_metrics=True)
    MLflowTracker()  # nothing else does
