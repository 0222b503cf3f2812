"""``gptf recommend``, ``gptf explain`` and ``gptf inspect``: what a saved model has learned."""

import json
from pathlib import Path
from typing import Any

import click

from gptf_gpytorch.commands import options
from gptf_gpytorch.commands.loading import load_model
from gptf_gpytorch.commands.options import FILE, FOLDER
from gptf_gpytorch.commands.printing import table
from gptf_gpytorch.serving.explain import neighbours, relevance
from gptf_gpytorch.serving.reading import read_entries
from gptf_gpytorch.serving.recommend import recommend as rank_candidates
from gptf_gpytorch.training.saved import FittedModel


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--given", multiple=True, metavar="MODE=ID", help="An entity that is fixed; once for each other mode.")
@click.option("--mode", required=True, help="The mode whose entities are ranked.")
@click.option("--top", default=10, show_default=True)
@click.option(
    "--by", type=click.Choice(["probability", "mean"]), default=None, help="[default: probability for labels]"
)
@click.option("--exclude", type=FILE, help="Entries that are not to be recommended, as those in training.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@options.fold_in
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
    fitted = load_model(folder, few)
    seen = None if exclude is None else read_entries(fitted, exclude, unseen="prior", duplicates="keep")
    rows = rank_candidates(fitted, fixed, mode, top, by=by, exclude=seen)
    table([row._asdict() for row in rows], as_json)


@click.command()
@click.argument("folder", type=FOLDER)
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
    table(found.get("nearest", []), False)


@click.command()
@click.argument("folder", type=FOLDER)
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
