"""``gptf recommend``, ``gptf explain`` and ``gptf inspect``: what a saved model has learned."""

import json
from pathlib import Path
from typing import Any, cast, get_args

import click

from gptf_gpytorch.commands import options
from gptf_gpytorch.commands.loading import load_model
from gptf_gpytorch.commands.options import PATH
from gptf_gpytorch.commands.printing import facts, table
from gptf_gpytorch.serving.explain import neighbours, relevance, shares
from gptf_gpytorch.serving.reading import read_indices
from gptf_gpytorch.serving.recommend import By, open_modes
from gptf_gpytorch.serving.recommend import recommend as rank_candidates
from gptf_gpytorch.training.saved import FittedModel, PaperModel, SampledModel


@click.command()
@click.argument("folder", type=PATH)
@click.option(
    "--given",
    multiple=True,
    metavar="MODE=ID",
    callback=options.pairs,
    help="An entity that is fixed; once for each mode that is known.",
)
@click.option("--mode", required=True, help="The mode whose entities are ranked.")
@options.top
@click.option(
    "--by",
    type=click.Choice(get_args(By)),
    help="What to rank by; the mean of labels is that of the latent function.  [default: probability for labels, else mean]",
)
@click.option(
    "--exclude",
    type=PATH,
    help="Entries, with or without values, that are not to be recommended, as those in training.",
)
@options.interval
@options.as_json
@options.fold_in
def recommend(
    folder: Path,
    given: dict[str, str],
    mode: str,
    top: int,
    by: Any,
    exclude: Path | None,
    interval: float,
    as_json: bool,
    few: Path | None,
) -> None:
    """Rank the entities of a mode, given others.

    Modes that are neither given nor ranked are averaged over: the prediction is for any of their entities, all as
    likely. It is the average, and its standard deviation and interval hold how much these entities differ.

    Example: gptf recommend runs/clicks --given user=42 --mode ad --top 10
    """
    fitted = load_model(folder, few)
    seen = None if exclude is None else read_indices(fitted, exclude)
    rows = rank_candidates(fitted, given, mode, top, by=by, exclude=seen, interval=interval)
    names = [f"{fitted.shape[place]:,} {fitted.mode_names[place]}" for place in open_modes(fitted, given, mode)]
    if names:
        click.echo(f"Averaged over all entities of the other modes: {' x '.join(names)}.", err=True)
    _say_what_numbers_are(fitted, [*given, mode])
    if not rows:
        click.echo("Nothing to recommend: every candidate is excluded.", err=True)
    table([row._asdict() for row in rows], as_json)


def _say_what_numbers_are(fitted: FittedModel, modes: list[str]) -> None:
    """A tns file counts from 1, its saved entries and arrays from 0: whoever reads a number must know."""
    plain = [mode for mode in modes if fitted.vocabularies[fitted.mode_names.index(mode)] is None]
    if plain:
        click.echo(f"Indices from 0 (a tns file counts from 1): {', '.join(plain)}.", err=True)


@click.command()
@click.argument("folder", type=PATH)
@click.option(
    "--near", multiple=True, metavar="MODE=ID", callback=options.pairs, help="Also the entities nearest to this one."
)
@options.top
@options.as_json
def explain(folder: Path, near: dict[str, str], top: int, as_json: bool) -> None:
    """Say which parts of the model or which modes matter, and which entities are alike.

    Example: gptf explain runs/clicks --near ad=17
    """
    fitted = FittedModel.load(folder)
    if isinstance(fitted, SampledModel):
        title, parts = "shares", shares(fitted)
    else:
        title, parts = "relevance", relevance(cast(PaperModel, fitted))
    found: dict[str, Any] = {title: parts}
    if len(near) > 1:
        raise click.UsageError(f"--near is one entity. Got {len(near)}.")
    for mode, item in near.items():
        found["nearest"] = [row._asdict() for row in neighbours(fitted, mode, item, top)]
        _say_what_numbers_are(fitted, [mode])
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, share in parts.items():
        click.echo(f"{name:<20} {100 * share:5.1f}%")
    table(found.get("nearest", []), False)


@click.command()
@click.argument("folder", type=PATH)
@options.as_json
def inspect(folder: Path, as_json: bool) -> None:
    """Say what a saved model is.

    Example: gptf inspect runs/clicks
    """
    facts(FittedModel.load(folder).describe(), as_json)
