"""``gptf sweep``."""

import itertools
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gptf_gpytorch.commands import options, tracked
from gptf_gpytorch.commands.options import PATH
from gptf_gpytorch.commands.printing import table
from gptf_gpytorch.data import TensorEntries, read
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.reporting.mlflow_tracker import MLflowTracker
from gptf_gpytorch.tracking.journal import Journal
from gptf_gpytorch.tracking.tracker import Tracker
from gptf_gpytorch.training.checkpoints import Checkpoints
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.fit import fit
from gptf_gpytorch.training.progress import ProgressPrinter
from gptf_gpytorch.training.saved import KIND, FittedModel, PaperModel

_SWEPT = ("rank", "inducing", "kernel")


@click.command(cls=options.RatioCommand)
@click.argument("data", type=PATH)
@click.option("--output", type=PATH, required=True, help="A folder for the runs, one each.")
@click.option("--config", "config_file", type=PATH, help="A TOML file with what all runs share; flags win.")
@click.option("--quiet", is_flag=True, help="Print nothing but the table.")
@options.as_json
@tracked.flags()
@options.columns
@options.flags(*_SWEPT)
def sweep(
    data: Path,
    output: Path,
    config_file: Path | None,
    quiet: bool,
    as_json: bool,
    tracking: tracked.Tracking,
    value: str,
    modes: list[str] | None,
    duplicates: Any,
    ids: Any,
    **flags: Any,
) -> None:
    """Train a model for every combination of several --rank, --inducing and --kernel.

    The runs are compared by how likely the entries are that all of them hold out of training. One that has finished is not
    done again, one that was stopped goes on. In MLflow they are nested under one run, which holds the table.

    Example: gptf sweep clicks.csv --method paper --rank 3 --rank 5 --inducing 50 --inducing 100 --output runs/sweep
    """
    if tracking.register:
        raise click.UsageError("--register is for one model, which gptf train makes. Got it for a sweep.")
    configs = _configs(config_file, flags)
    binary = configs[0].likelihood == "probit"
    reading = {"value": value, "modes": modes, "duplicates": duplicates, "ids": ids, "binary": binary}
    entries = read(data, **reading)
    parent = tracking.tracker(data, **reading)
    if parent is not None:
        swept = {name: ", ".join(dict.fromkeys(_shown(getattr(c, name)) for c in configs)) for name in _SWEPT}
        parent.begin(output, {f"swept_{name}": values for name, values in swept.items()})
    rows: list[dict[str, Any]] = []
    try:
        for config in configs:
            name = ",".join(f"{axis}={_shown(getattr(config, axis))}" for axis in _SWEPT)
            trackers: list[Tracker] = [] if quiet else [ProgressPrinter()]
            if parent is not None:
                trackers.append(
                    MLflowTracker(tracking.experiment, name=name, source=data, reading=reading, parent=parent)
                )
            fitted = _fitted(entries, config, output / name, trackers, value)
            rows.append({axis: _shown(getattr(config, axis)) for axis in _SWEPT} | _numbers(fitted))
    except BaseException as error:
        if parent is not None:
            parent.fail(f"{type(error).__name__}: {error}")
        raise
    rows.sort(key=lambda row: -row["held_out"])
    if parent is not None:
        parent.summarize(rows, "held_out")
        left = sum(1 for journal in Journal.below(output) if journal.waiting)
        if left:
            click.echo(
                f"Note: MLflow has not got all of {left} runs. Later: {shlex.join(['gptf', 'sync', str(output)])}",
                err=True,
            )
    table(rows, as_json)


def _configs(file: Path | None, flags: dict[str, Any]) -> list[TrainConfig]:
    """The configuration of every combination."""
    axes = {name: flags[name] for name in _SWEPT}
    changes = {name: flag for name, flag in flags.items() if flag is not None and name not in _SWEPT}
    try:
        base = TrainConfig.of(changes) if file is None else TrainConfig.read(file, **changes)
        values = [axes[name] or (getattr(base, name),) for name in _SWEPT]
        found = [replace(base, **dict(zip(_SWEPT, chosen, strict=True))) for chosen in itertools.product(*values)]
    except InputError as error:
        raise click.UsageError(str(error)) from error
    if base.method != "paper":
        raise click.UsageError(
            f"--rank, --inducing and --kernel are options of --method paper: a sweep needs it. Got {base.method!r}."
        )
    if not base.validation:
        raise click.UsageError("Runs are compared by entries held out: --validation must be above 0. Got 0.")
    return found


def _fitted(
    entries: TensorEntries, config: TrainConfig, folder: Path, trackers: list[Tracker], value: str
) -> FittedModel:
    """The model of a combination, trained if it is not there."""
    if (folder / KIND).is_dir():
        found = FittedModel.load(folder)
        if found.config != config:
            raise InputError(f"A sweep that goes on must have the options it began with. Got others than in {folder}.")
        return found
    resume = bool(Checkpoints(folder).steps())
    return fit(entries, config, tracker=trackers, output=folder, resume=resume, value_name=value).fitted


def _numbers(fitted: FittedModel) -> dict[str, float]:
    """What came of a run: the state that was kept, and how long it took."""
    history = fitted.history if isinstance(fitted, PaperModel) else None
    kept = None if history is None else history.kept
    if history is None or kept is None or kept.held_out is None:
        raise InputError("A sweep compares runs that held entries out. Got one that did not.")
    last = history.steps[-1]
    return {"held_out": kept.held_out, "bound": kept.bound, "steps": last.iteration, "seconds": last.seconds}


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
