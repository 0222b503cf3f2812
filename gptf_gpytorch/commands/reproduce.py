"""``gptf reproduce``."""

import math
from collections.abc import Mapping
from pathlib import Path

import click

from gptf_gpytorch.commands import tracked
from gptf_gpytorch.commands.group import say
from gptf_gpytorch.commands.options import PATH
from gptf_gpytorch.data import read
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.reporting import report
from gptf_gpytorch.tracking.logged import logged_run
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.fit import fit
from gptf_gpytorch.training.problem import digest
from gptf_gpytorch.training.progress import ProgressPrinter
from gptf_gpytorch.training.result import Result
from gptf_gpytorch.training.saved import PaperModel

# Relative: other threads and processors add in another order, and steps that follow from it drift apart.
_TOLERANCE = 1e-6


@click.command()
@click.argument("run")
@click.option("--output", type=PATH, required=True, help="The new run's folder.")
@click.option("--data", type=PATH, help="Where the entries are now, if they have moved.")
@click.option("--quiet", is_flag=True, help="Print the verdict alone.")
@tracked.flags("track", "experiment", "run_name")
@click.pass_context
def reproduce(
    ctx: click.Context, /, run: str, output: Path, data: Path | None, quiet: bool, tracking: tracked.Tracking
) -> None:
    """Do a run that MLflow has once more, and say whether it comes out the same.

    RUN is the run's id; MLFLOW_TRACKING_URI says where it is. The entries must be the same ones. The exit code is 0 if the
    final bound, or the scores of held-out entries of a sampled model, agree.

    Example: gptf reproduce 0a1b2c3d4e5f60718293a4b5c6d7e8f9 --output runs/again
    """
    logged = logged_run(run)
    source = data or (None if logged.source is None else Path(logged.source))
    if source is None:
        raise InputError("A run on entries in memory cannot be read again: name a file with --data. Got none.")
    entries = read(source, **logged.reading)
    if not digest(entries).startswith(logged.digest):
        raise InputError(f"The entries must be those of the run. Got others: {source} has changed.")
    # Runs were of one method before there were two.
    config = TrainConfig.from_dict({"method": "paper", **logged.config}, f"run {run}")
    value = logged.reading.get("value") or "value"
    tracker = tracking.tracker(source, {"reproduces": run}, **logged.reading)
    watching = [*([] if quiet else [ProgressPrinter()]), *([tracker] if tracker else [])]
    result = fit(entries, config, tracker=watching, output=output, value_name=value)
    if tracker is not None and tracker.trouble:
        say(ctx, f"Note: {tracker.trouble}")
    if not _agrees(result, logged.metrics):
        raise click.exceptions.Exit(1)


def _agrees(result: Result, logged: Mapping[str, float]) -> bool:
    """Whether the bound, or the scores of held-out entries where there is no bound, are those that were logged; say it."""
    if isinstance(result.fitted, PaperModel):
        numbers = {"final_bound": ("bound of an entry", result.bound)}
    else:
        numbers = {name: (name, score) for name, score in report.scores(result).items()}
    if not numbers:
        raise InputError(
            "Sampled models are compared by the entries that their race held out. Got a run that held out none."
        )
    verdicts = []
    for name, (words, found) in numbers.items():
        then = logged.get(name)
        verdicts.append(then is not None and math.isclose(found, then, rel_tol=_TOLERANCE))
        click.echo(f"{words}: {found!r}, logged {then!r}: {'the same' if verdicts[-1] else 'not the same'}")
    return all(verdicts)
