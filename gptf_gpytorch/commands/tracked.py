"""How a command is tracked: the flags, and the tracker that they ask for."""

import functools
from collections.abc import Callable
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
    register: str | None
    alias: str | None
    system_metrics: bool

    def tracker(self, data: Path, **reading: Any) -> MLflowTracker | None:
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
            register=self.register,
            alias=self.alias,
            system_metrics=self.system_metrics,
        )


def flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """The flags that say where a run is logged, as one argument ``tracking``."""

    @functools.wraps(command)
    def call(
        *args: Any,
        track: str,
        experiment: Any,
        run_name: Any,
        register: Any,
        alias: Any,
        system_metrics: bool,
        **rest: Any,
    ) -> Any:
        tracking = Tracking(track, experiment, run_name, register, alias, system_metrics)
        return command(*args, tracking=tracking, **rest)

    found: Callable[..., Any] = call
    for option in (
        click.option("--system-metrics", is_flag=True, help="Log the use of processors and memory to MLflow as well."),
        click.option("--alias", metavar="NAME", help="What the registered version is known by, e.g. champion."),
        click.option("--register", metavar="NAME", help="Register the model with MLflow under this name."),
        click.option("--run-name", metavar="NAME", help="What MLflow calls the run."),
        click.option("--experiment", metavar="NAME", help="MLflow's experiment.  [default: as MLflow is set]"),
        click.option(
            "--track",
            type=click.Choice(["none", "mlflow"]),
            default="none",
            show_default=True,
            help="Where the run is logged; MLFLOW_TRACKING_URI says which store.",
        ),
    ):
        found = option(found)
    return found
