"""``gptf evaluate`` and ``gptf predict``: a saved model on entries in a file."""

import json
import math
from pathlib import Path
from typing import Any

import click

from gptf_gpytorch.commands import options, tracked
from gptf_gpytorch.commands.group import say
from gptf_gpytorch.commands.loading import load_model
from gptf_gpytorch.commands.options import PATH
from gptf_gpytorch.serving.metrics import evaluate as measure
from gptf_gpytorch.serving.reading import read_entries
from gptf_gpytorch.serving.tables import write_predictions


@click.command()
@click.argument("folder", type=PATH)
@click.argument("data", type=PATH)
@options.as_json
@options.unseen
@options.fold_in
@tracked.flags("track", "experiment", "run_name")
@click.pass_context
def evaluate(
    ctx: click.Context,
    /,
    folder: Path,
    data: Path,
    as_json: bool,
    unseen: Any,
    few: Path | None,
    tracking: tracked.Tracking,
) -> None:
    """Score the model in FOLDER on the values in DATA.

    Example: gptf evaluate runs/clicks test.csv --json
    """
    logged = tracking.tracker(data)
    fitted = load_model(folder, few)
    entries = read_entries(fitted, data, unseen=unseen, duplicates="keep")
    found = measure(fitted, entries)
    unknown = len(entries) - int(entries.known.sum())
    if unknown:
        say(ctx, f"Note: {unknown:,} of {len(entries):,} rows have an id that was not in training.")
    if logged is not None:
        logged.evaluated(folder, fitted, entries, found)
        if logged.trouble:
            say(ctx, f"Note: {logged.trouble}")
    if as_json:
        click.echo(json.dumps({name: None if math.isnan(number) else number for name, number in found.items()}))
        return
    for name, number in found.items():
        click.echo(f"{name:<20} {number:.6g}")


@click.command()
@click.argument("folder", type=PATH)
@click.argument("data", type=PATH)
@click.option("--output", type=PATH, required=True, help="Where to write: csv or parquet, by its name.")
@options.unseen
@options.fold_in
@options.interval
def predict(folder: Path, data: Path, output: Path, unseen: Any, few: Path | None, interval: float) -> None:
    """Predict the entries in DATA.

    DATA has the model's mode columns, as in training; other columns are kept.

    Example: gptf predict runs/clicks new.csv --output predictions.csv
    """
    rows = write_predictions(load_model(folder, few), data, output, unseen=unseen, interval=interval)
    click.echo(f"{rows:,} predictions: {output}", err=True)
