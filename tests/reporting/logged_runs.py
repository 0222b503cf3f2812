"""What the tests ask of runs that were logged."""

import time
from typing import Any

from gptf_gpytorch import MLflowTracker
from gptf_gpytorch.tracking.journal import Journal

SMALL: dict[str, Any] = {"method": "paper", "rank": 2, "inducing": 15, "max_iterations": 6}


def steps_of(client: Any, run_id: str, name: str) -> list[tuple[int, float]]:
    return sorted((metric.step, metric.value) for metric in client.get_metric_history(run_id, name))


def wait_for(journal: Journal) -> None:
    """Until everything is sent: what is stopped, or waits for a busy server, leaves that to others."""
    for _ in range(600):
        if not journal.waiting:
            return
        time.sleep(0.1)
    raise AssertionError(journal.sent)


def run_of(tracker: MLflowTracker) -> str:
    """The run's id, when everything is sent."""
    wait_for(tracker.journal)
    return str(tracker.run_id or tracker.journal.sent["run_id"])
