"""The ``gptf`` command: parsing and printing only."""

import json
import math
import os
import shlex
import shutil
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import click

from gptf_gpytorch import health, options
from gptf_gpytorch.data import TensorEntries, read
from gptf_gpytorch.data.entries import MANIFEST
from gptf_gpytorch.distributed import communicator, supervisor, threads
from gptf_gpytorch.distributed.verdicts import together
from gptf_gpytorch.distributed.watchdog import TIMEOUT
from gptf_gpytorch.errors import GPTFError, InputError, InterruptedRunError
from gptf_gpytorch.serving.explain import neighbours, relevance
from gptf_gpytorch.serving.fold_in import fold_in
from gptf_gpytorch.serving.metrics import evaluate as measure
from gptf_gpytorch.serving.reading import read_entries
from gptf_gpytorch.serving.recommend import recommend as rank_candidates
from gptf_gpytorch.serving.tables import write_predictions
from gptf_gpytorch.tracking import mlflow_tracker
from gptf_gpytorch.training.checkpoints import Checkpoints
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.fit import fit
from gptf_gpytorch.training.progress import ProgressPrinter
from gptf_gpytorch.training.saved import FittedModel
from gptf_gpytorch.training.signals import StopRequest
from gptf_gpytorch.variational import paths
from gptf_gpytorch.version import __version__

_FOLDER = click.Path(path_type=Path)
_FILE = click.Path(exists=True, path_type=Path)


class _Group(click.Group):
    """Errors that the package raises on purpose are one line; anything else is a defect and shows where it came from."""

    def invoke(self, ctx: click.Context) -> Any:
        with StopRequest(at_once=True).listening() as stop:
            try:
                return self._invoke(ctx)
            except KeyboardInterrupt:  # there was nothing to save, or a second Ctrl-C did not wait for it
                _say_stopped(ctx, "Stopped at once.")
                ctx.exit(128 + (stop.signal or signal.SIGINT))

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_, **__: _say(ctx, f"Note: {message}")
                return super().invoke(ctx)
        except InterruptedRunError as stopped:
            _say_stopped(ctx, str(stopped))
            if "workers" in ctx.obj:
                ctx.obj["workers"].close()  # nobody leaves before worker 0 has written and spoken
            ctx.exit(128 + stopped.signal)
        except (GPTFError, OSError) as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"Error: {' '.join(str(error).split())}", err=True)
            ctx.exit(1)


def _say_stopped(ctx: click.Context, text: str) -> None:
    """Print why a command was stopped, and how a run goes on if it can."""
    _say(ctx, text)
    if ctx.obj and ctx.obj.get("resume") and Checkpoints(ctx.obj["output"]).steps():
        _say(ctx, f"Resume: {ctx.obj['resume']}")


def _say(ctx: click.Context, text: str) -> None:
    """Print a line, on one worker."""
    workers = (ctx.obj or {}).get("workers")
    if workers is None or workers.rank == 0:
        click.echo(text, err=True)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show where an error came from.")
@click.version_option(__version__, prog_name="gptf")
@click.pass_context
def main(ctx: click.Context, debug: bool) -> None:
    """Nonlinear tensor factorization with Gaussian processes."""
    ctx.obj = {}


@main.command()
@click.argument("data", type=_FOLDER)
@click.option("--output", type=_FOLDER, help="The run's folder: checkpoints, and the model at the end.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in --output.")
@click.option("--config", "config_file", type=_FOLDER, help="A TOML file with the same names; flags win.")
@click.option("--track", type=click.Choice(["none", "mlflow"]), default="none", show_default=True)
@click.option("--quiet", is_flag=True, help="Print nothing.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT,
    show_default=True,
    help="Seconds that workers wait for one of them before the job ends.",
)
@options.columns
@options.flags
@click.pass_context
def train(
    ctx: click.Context,
    /,
    data: Path,
    output: Path | None,
    resume: bool,
    config_file: Path | None,
    track: str,
    quiet: bool,
    timeout: float,
    value: str,
    modes: str | None,
    duplicates: Any,
    **flags: Any,
) -> None:
    """Train a model on DATA: csv, tsv, tns (gzipped or not), parquet, or saved entries.

    Example: gptf train clicks.csv --likelihood probit --rank 5 --balance --output runs/clicks
    """
    if track == "mlflow":
        raise click.UsageError("--track mlflow is not there yet.")
    changes = {name: flag for name, flag in flags.items() if flag is not None}
    if resume and output is None:
        raise click.UsageError("--resume goes on in the folder that --output names. Got no --output.")
    try:
        config = TrainConfig.of(changes) if config_file is None else TrainConfig.read(config_file, **changes)
    except InputError as error:
        raise click.UsageError(str(error)) from error
    arguments = [argument for argument in sys.argv[1:] if argument != "--resume"]
    if communicator.started_by_horovodrun():
        supervisor.go_on_in_child()
    if quiet:
        warnings.simplefilter("ignore")
    workers = ctx.obj["workers"] = communicator.current(timeout)
    for name in communicator.exposed():
        _say(
            ctx,
            f"Note: horovodrun shows {name} to every user of the machine, in ps: keep secrets out of its environment.",
        )

    launcher = f"horovodrun -np {workers.size} " if workers.size > 1 else ""
    here = Path(sys.argv[0]).name == "gptf" and not shutil.which("gptf")  # not on the path: name it as it was called
    command = os.path.relpath(sys.argv[0]) if here else "gptf"
    ctx.obj["resume"] = f"{launcher}{shlex.join([command, *arguments, '--resume'])}" if output else None
    ctx.obj["output"] = output
    binary = config.likelihood == "probit"
    entries = together(workers, lambda: _entries(data, value, modes, duplicates, binary=binary))
    fit(
        entries,
        config,
        communicator=workers,
        tracker=None if quiet else ProgressPrinter(),
        output=output,
        resume=resume,
        value_name=value,
    )
    if output is None and not quiet:
        _say(ctx, "The model was not kept: --output DIR keeps it.")
    if output is not None and not quiet:
        _say(ctx, f"model: {output / 'model'}")
        _say(ctx, f"next: {command} evaluate {shlex.quote(str(output))} TEST.csv")
    workers.close()


def _entries(data: Path, value: str, modes: str | None, duplicates: Any, *, binary: bool) -> TensorEntries:
    if data.is_dir() and (data / MANIFEST).exists():
        return read(data)
    names = None if modes is None else modes.split(",")
    return read(data, value=value, modes=names, duplicates=duplicates, binary=binary)


def _model(folder: Path, few: Path | None = None) -> FittedModel:
    fitted = FittedModel.load(folder)
    return fitted if few is None else fold_in(fitted, read_entries(fitted, few, unseen="new"))


_UNSEEN = click.option(
    "--unseen",
    type=click.Choice(["error", "prior"]),
    default="error",
    show_default=True,
    help="What to do with an id that was not in training: stop, or predict the prior mean.",
)
_FOLD_IN = click.option("--fold-in", "few", type=_FILE, help="A few entries of new entities, to learn them from.")
_INTERVAL = click.option("--interval", default=0.95, show_default=True, help="The probability of the interval.")


@main.command()
@click.argument("folder", type=_FOLDER)
@click.argument("data", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_UNSEEN
@_FOLD_IN
def evaluate(folder: Path, data: Path, as_json: bool, unseen: Any, few: Path | None) -> None:
    """Compare the model in FOLDER with the values in DATA.

    Example: gptf evaluate runs/clicks test.csv --json
    """
    fitted = _model(folder, few)
    found = measure(fitted, read_entries(fitted, data, unseen=unseen, duplicates="keep"))
    if as_json:
        click.echo(json.dumps({name: None if math.isnan(number) else number for name, number in found.items()}))
        return
    for name, number in found.items():
        click.echo(f"{name:<20} {number:.6g}")


@main.command()
@click.argument("folder", type=_FOLDER)
@click.argument("data", type=_FILE)
@click.option("--output", type=_FOLDER, required=True, help="Where to write: csv or parquet, by its name.")
@_UNSEEN
@_FOLD_IN
@_INTERVAL
def predict(folder: Path, data: Path, output: Path, unseen: Any, few: Path | None, interval: float) -> None:
    """Predict the entries in DATA, a csv or parquet file with the model's mode columns; others are kept.

    Example: gptf predict runs/clicks new.csv --output predictions.csv
    """
    rows = write_predictions(_model(folder, few), data, output, unseen=unseen, interval=interval)
    click.echo(f"{rows:,} predictions: {output}", err=True)


@main.command()
@click.argument("folder", type=_FOLDER)
@click.option("--given", multiple=True, metavar="MODE=ID", help="An entity that is fixed; once for each other mode.")
@click.option("--mode", required=True, help="The mode whose entities are ranked.")
@click.option("--top", default=10, show_default=True)
@click.option(
    "--by", type=click.Choice(["probability", "mean"]), default=None, help="[default: probability for labels]"
)
@click.option("--exclude", type=_FILE, help="Entries that are not to be recommended, as those in training.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_FOLD_IN
def recommend(
    folder: Path,
    given: tuple[str, ...],
    mode: str,
    top: int,
    by: Any,
    exclude: Path | None,
    as_json: bool,
    few: Path | None,
) -> None:
    """Rank the entities of one mode, given one of each other mode.

    Example: gptf recommend runs/clicks --given user=42 --given page=7 --mode ad --top 10
    """
    fixed = {}
    for pair in given:
        name, equals, item = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--given is MODE=ID, as in user=42. Got {pair!r}.")
        fixed[name] = item
    fitted = _model(folder, few)
    seen = None if exclude is None else read_entries(fitted, exclude, unseen="prior", duplicates="keep")
    rows = rank_candidates(fitted, fixed, mode, top, by=by, exclude=seen)
    _print_table([row._asdict() for row in rows], as_json)


@main.command()
@click.argument("folder", type=_FOLDER)
@click.option("--near", metavar="MODE=ID", help="Also the entities nearest to this one.")
@click.option("--top", default=10, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(folder: Path, near: str | None, top: int, as_json: bool) -> None:
    """Say which modes matter, and which entities are alike.

    Example: gptf explain runs/clicks --near ad=17
    """
    fitted = FittedModel.load(folder)
    found: dict[str, Any] = {"relevance": relevance(fitted)}
    if near is not None:
        mode, equals, item = near.partition("=")
        if not equals:
            raise click.UsageError(f"--near is MODE=ID, as in ad=17. Got {near!r}.")
        found["nearest"] = [row._asdict() for row in neighbours(fitted, mode, item, top)]
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, share in found["relevance"].items():
        click.echo(f"{name:<20} {100 * share:5.1f}%")
    _print_table(found.get("nearest", []), False)


@main.command()
@click.argument("folder", type=_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(folder: Path, as_json: bool) -> None:
    """Say what a saved model is.

    Example: gptf inspect runs/clicks
    """
    found = FittedModel.load(folder).describe()
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, text in found.items():
        shown = ", ".join(f"{k} {v:,}" for k, v in text.items()) if isinstance(text, dict) else text
        click.echo(f"{name:<12} {shown}")


def _print_table(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(rows))
        return
    names = [name for name in (rows[0] if rows else {}) if rows[0][name] is not None]
    lines = [[f"{row[name]:.6g}" if isinstance(row[name], float) else str(row[name]) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *lines, strict=True)]
    for line in [names, *lines] if rows else []:
        click.echo("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))


@main.command()
def doctor() -> None:
    """Say what is installed, whether it works, and what provides what is missing.

    The exit code is 0 if everything that is installed works, 1 otherwise.

    Example: gptf doctor
    """
    facts = [fact for layer in (health, threads, paths, communicator, mlflow_tracker) for fact in layer.describe()]
    width = max(len(fact.topic) for fact in facts)
    for fact in facts:
        click.echo(f"{fact.state:<8} {fact.topic:<{width}}  {fact.value}")
        if fact.remedy is not None:
            click.echo(f"{'':<8} {'':<{width}}  -> {fact.remedy}")
    broken = [fact.topic for fact in facts if fact.state == "broken"]
    if broken:
        raise click.ClickException(f"does not work: {', '.join(broken)}")


if __name__ == "__main__":
    main()
