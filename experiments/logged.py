"""Every fit of a table as an MLflow run, nested in the run of the table."""

import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from statistics import fmean
from types import TracebackType
from typing import Any

from plan import Cell, Plan

EXPERIMENT = "paper"


class Log(AbstractContextManager["Log"]):
    """Listens and does nothing."""

    def begin(self, cell: Cell) -> None:
        """A fit begins."""

    def end(self, result: Mapping[str, Any] | None, series: Mapping[str, list[float]] | None = None) -> None:
        """It has ended: with a result and numbers for its steps, or with an error."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The table has ended."""


class MlflowLog(Log):
    """Logs to ``MLFLOW_TRACKING_URI``, or to `mlflow.db` here."""

    def __init__(self, plan: Plan) -> None:
        from mlflow.tracking import MlflowClient  # takes seconds

        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db"))
        found = self.client.get_experiment_by_name(EXPERIMENT)
        self.experiment = found.experiment_id if found else self.client.create_experiment(EXPERIMENT)
        self.parent = self.client.create_run(self.experiment, run_name=plan.name).info.run_id
        self.client.log_param(self.parent, "cells", len(plan.cells))
        self.child: str | None = None

    def begin(self, cell: Cell) -> None:
        """Begin a nested run with the fit's options."""
        tags = {"mlflow.parentRunId": self.parent}
        self.child = self.client.create_run(self.experiment, run_name=cell.place, tags=tags).info.run_id
        about = {"data": cell.data, "label": cell.label, "method": cell.method, "rank": cell.rank, "fold": cell.fold}
        for name, value in {**about, "seed": cell.seed, **cell.options}.items():
            self.client.log_param(self.child, name, value)

    def end(self, result: Mapping[str, Any] | None, series: Mapping[str, list[float]] | None = None) -> None:
        """Log the mean of every metric over the test sets, the seconds, and the numbers of the steps."""
        from mlflow.entities import Metric

        if self.child is None:
            return
        if result is not None:
            now = int(1000 * time.time())
            numbers = {f"test_{name}": fmean(values) for name, values in result["metrics"].items()}
            logged = [Metric(name, value, now, 0) for name, value in {**numbers, "seconds": result["seconds"]}.items()]
            logged += [
                Metric(f"step_{name}", value, now, step)
                for name, values in (series or {}).items()
                for step, value in enumerate(values, start=1)
            ]
            for start in range(0, len(logged), 1000):
                self.client.log_batch(self.child, metrics=logged[start : start + 1000])
        self.client.set_terminated(self.child, "FAILED" if result is None else "FINISHED")
        self.child = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the table's run, and that of a fit that was interrupted."""
        self.end(None)
        self.client.set_terminated(self.parent, "FINISHED" if kind is None else "FAILED")
