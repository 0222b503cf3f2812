"""The use of processors, memory, disk and network while a run is trained, written to its journal.

MLflow's own monitor sends what it measures, and ends for good with the first request that fails; what the journal holds is
sent when there is a server, and once.
"""

import importlib
import threading
from typing import Any

from gptf_gpytorch.tracking.journal import Journal

KIND = "system"  # of the journal's lines
_MONITORS = {"cpu": "CPU", "disk": "Disk", "network": "Network", "rocm": "ROCM", "gpu": "GPU"}  # MLflow's


class Sampler:
    """Measures in a thread, as often as ``MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL`` says: by default every ten seconds.

    :param journal: where the numbers go; they are counted on from those that it holds.
    """

    def __init__(self, journal: Journal) -> None:
        settings = importlib.import_module("mlflow.environment_variables")
        self._interval = settings.MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL.get() or 10.0
        self._together = settings.MLFLOW_SYSTEM_METRICS_SAMPLES_BEFORE_LOGGING.get() or 1
        node = settings.MLFLOW_SYSTEM_METRICS_NODE_ID.get()
        self._prefix = f"system/{node}/" if node else "system/"
        self._monitors = list(filter(None, (_monitor(*name) for name in _MONITORS.items())))
        self.journal = journal
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write a last sample, which a run that is shorter than the interval has as well."""
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        step = sum(record["kind"] == KIND for record, _ in self.journal.records())
        self._collect()  # the use of processors is that since the last look
        self._take()
        over = False
        while not over:
            for _ in range(self._together):
                over = self._over.wait(self._interval)
                self._collect()
                if over:
                    break
            self.journal.append(KIND, step=step, values=self._take())
            step += 1

    def _collect(self) -> None:
        for monitor in self._monitors:
            monitor.collect_metrics()

    def _take(self) -> dict[str, float]:
        """The means of what was collected, which is then forgotten."""
        values: dict[str, float] = {}
        for monitor in self._monitors:
            values |= {f"{self._prefix}{name}": value for name, value in monitor.aggregate_metrics().items()}
            monitor.clear_metrics()
        return values


def _monitor(module: str, name: str) -> Any:
    """One of MLflow's monitors; None where there is nothing of its kind."""
    try:
        return getattr(importlib.import_module(f"mlflow.system_metrics.metrics.{module}_monitor"), f"{name}Monitor")()
    except Exception:  # whatever the drivers of graphics cards that are not there raise
        return None
