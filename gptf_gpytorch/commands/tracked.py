"""How a command is tracked: the flags, and the tracker that they ask for."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gptf_gpytorch.reporting.mlflow_tracker import MLflowTracker


@dataclass(frozen=True)
class Tracking:
    """What the flags say."""

    track: str
    experiment: str | None
    run_name: str | None
    register: str | None = None
    alias: str | None = None
    system_metrics: bool = False

    def tracker(self, data: Path, tags: Mapping[str, str] | None = None, /, **reading: Any) -> MLflowTracker | None:
        """Who logs a run on the entries in a file, and how it was read; nobody with ``--track none``."""
        if self.track == "none":
            for name in ("experiment", "run_name", "register", "alias", "system_metrics"):
                if getattr(self, name):
                    flag = f"--{name.replace('_', '-')}"
                    raise click.UsageError(f"{flag} is for runs that are logged. Got it without --track mlflow.")
            return None
        return MLflowTracker(
            self.experiment,
            name=self.run_name,
            source=data,
            reading=reading,
            tags=tags,
            register=self.register,
            alias=self.alias,
            system_metrics=self.system_metrics,
        )


_OPTIONS = {
    "track": click.option(
        "--track",
        type=click.Choice(["none", "mlflow"]),
        default="none",
        show_default=True,
        help="Where the run is logged; MLFLOW_TRACKING_URI says which store.",
    ),
    "experiment": click.option(
        "--experiment", metavar="NAME", help="MLflow's experiment.  [default: as MLflow is set]"
    ),
    "run_name": click.option("--run-name", metavar="NAME", help="What MLflow calls the run."),
    "register": click.option("--register", metavar="NAME", help="Register the model with MLflow under this name."),
    "alias": click.option("--alias", metavar="NAME", help="What the registered version is known by, e.g. champion."),
    "system_metrics": click.option(
        "--system-metrics", is_flag=True, help="Log the use of processors and memory to MLflow as well."
    ),
}


def flags(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The flags that say where a run is logged, all or those of these names, as one argument ``tracking``."""
    chosen = names or tuple(_OPTIONS)

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def call(*args: Any, **given: Any) -> Any:
            tracking = Tracking(**{name: given.pop(name) for name in chosen})
            return command(*args, tracking=tracking, **given)

        found: Callable[..., Any] = call
        for name in reversed(chosen):
            found = _OPTIONS[name](found)
        return found

    return add
