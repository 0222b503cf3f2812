"""A run that MLflow has: what it was trained on, how, and what came of it."""

import importlib
from dataclasses import dataclass
from typing import Any

from gptf_gpytorch.errors import TrackingError
from gptf_gpytorch.tracking import mlflow_store


@dataclass(frozen=True)
class LoggedRun:
    """What is needed to do it again, and to see whether it comes out the same."""

    config: dict[str, Any]
    source: str | None  # of the entries; None if they were in memory
    reading: dict[str, Any]  # how the source was read
    digest: str  # the SHA-256 of the entries
    metrics: dict[str, float]  # the last of each; those of the end are missing if the run did not end well


def logged_run(run_id: str) -> LoggedRun:
    """The run of that id in the store that MLflow is set to."""
    mlflow_store.bound_requests()
    try:
        mlflow = importlib.import_module("mlflow")
        run = importlib.import_module("mlflow.tracking").MlflowClient().get_run(run_id)
        config = mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/config.json")
        data = mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/data.json")
    except Exception as error:
        raise TrackingError(f"MLflow must have the run. Got {run_id}: {mlflow_store.explain(error)}") from error
    return LoggedRun(config, data["uri"], data["reading"], data["digest"], dict(run.data.metrics))
