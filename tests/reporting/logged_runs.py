"""What the tests ask of runs that were logged."""

import time
from typing import Any

from gptf_gpytorch import MLflowTracker

SMALL: dict[str, Any] = {"rank": 2, "inducing": 15, "max_iterations": 6}


def steps_of(client: Any, run_id: str, name: str) -> list[tuple[int, float]]:
    return sorted((metric.step, metric.value) for metric in client.get_metric_history(run_id, name))


def run_of(tracker: MLflowTracker) -> str:
    """The run's id, when everything is sent: what is stopped does not wait for that."""
    for _ in range(600):
        if tracker.trouble is None:
            break
        time.sleep(0.1)
    assert tracker.trouble is None
    return str(tracker.run_id or tracker.journal.sent["run_id"])
