"""``gptf train``."""

import os
import shlex
import shutil
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import click

from gptf_gpytorch.commands import options, tracked
from gptf_gpytorch.commands.group import say
from gptf_gpytorch.commands.options import PATH
from gptf_gpytorch.data import read
from gptf_gpytorch.data.entries import MANIFEST
from gptf_gpytorch.distributed import communicator, supervisor
from gptf_gpytorch.distributed.elastic import ElasticCommunicator
from gptf_gpytorch.distributed.verdicts import together
from gptf_gpytorch.distributed.watchdog import TIMEOUT
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.fit import fit
from gptf_gpytorch.training.progress import ProgressPrinter


@click.command(cls=options.RatioCommand)
@click.argument("data", type=PATH)
@click.option("--output", type=PATH, help="The run's folder: checkpoints, and the model at the end.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in --output.")
@click.option("--config", "config_file", type=PATH, help="A TOML file with the same names; flags win.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT,
    show_default=True,
    help="Seconds that workers wait for one of them before the job ends.",
)
@click.option("--elastic", is_flag=True, help="Go on when workers leave or come; with an elastic horovodrun.")
@tracked.flags()
@options.columns
@options.flags()
@click.pass_context
def train(
    ctx: click.Context,
    /,
    data: Path,
    output: Path | None,
    resume: bool,
    config_file: Path | None,
    quiet: bool,
    timeout: float,
    elastic: bool,
    tracking: tracked.Tracking,
    value: str,
    modes: list[str] | None,
    duplicates: Any,
    ids: Any,
    **flags: Any,
) -> None:
    """Train a model on the entries in DATA.

    DATA is a csv, tsv or tns file (gzipped or not), parquet (a file or a folder), or saved entries.

    Example: gptf train clicks.csv --likelihood probit --balance --output runs/clicks
    """
    changes = {name: flag for name, flag in flags.items() if flag is not None}
    if resume and output is None:
        raise click.UsageError("--resume goes on in the folder that --output names. Got no --output.")
    try:
        config = TrainConfig.of(changes) if config_file is None else TrainConfig.read(config_file, **changes)
    except InputError as error:
        raise click.UsageError(str(error)) from error
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--resume", "--elastic")]
    if communicator.started_by_horovodrun():
        supervisor.go_on_in_child(lives=3 if elastic else 1)
    if quiet:
        warnings.simplefilter("ignore")
    workers = ctx.obj["workers"] = ElasticCommunicator(timeout) if elastic else communicator.current(timeout)
    for name in communicator.exposed():
        say(
            ctx,
            f"Note: horovodrun shows {name} to every user of the machine, in ps: keep secrets out of its environment.",
        )

    launcher = f"horovodrun -np {workers.size} " if workers.size > 1 else ""
    here = Path(sys.argv[0]).name == "gptf" and not shutil.which("gptf")  # not on the path: name it as it was called
    command = os.path.relpath(sys.argv[0]) if here else "gptf"
    ctx.obj["resume"] = f"{launcher}{shlex.join([command, *arguments, '--resume'])}" if output else None
    ctx.obj["output"] = output
    binary = config.likelihood == "probit"
    reading = _reading(data, value=value, modes=modes, duplicates=duplicates, ids=ids, binary=binary)
    logged = tracking.tracker(data, **reading)
    found = partial(read, data, **reading)
    # A newcomer to an elastic job reads while the others wait for it in fit().
    entries = found() if elastic else together(workers, found)
    fit(
        entries,
        config,
        communicator=workers,
        tracker=[*([] if quiet else [ProgressPrinter()]), *([logged] if logged else [])],
        output=output,
        resume=resume,
        value_name=value,
    )
    if logged and workers.rank == 0 and logged.trouble and not quiet:
        say(ctx, f"Note: {logged.trouble}")
    if output is None and not quiet:
        say(ctx, "The model was not kept: --output DIR keeps it.")
    if output is not None and not quiet:
        say(ctx, f"model: {output / 'model'}")
        say(ctx, f"next: {command} evaluate {shlex.quote(str(output))} TEST.csv")
    workers.close()


def _reading(data: Path, **options: Any) -> dict[str, Any]:
    """How the data is read; the columns of saved entries were named when they were saved."""
    return {} if data.is_dir() and (data / MANIFEST).exists() else options
