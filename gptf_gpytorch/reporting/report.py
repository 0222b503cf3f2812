"""A finished run in figures and numbers: how it went, and what the model says of entries that it was not trained on."""

import json
from pathlib import Path
from typing import cast

import torch

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.reporting import figures
from gptf_gpytorch.serving.explain import relevance, scaled_factors, shares
from gptf_gpytorch.serving.metrics import evaluate
from gptf_gpytorch.serving.predictions import predict
from gptf_gpytorch.training.result import Result
from gptf_gpytorch.training.saved import FittedModel, PaperModel, SampledModel

# Entries, and entities of a mode, that a figure is drawn from at most.
_ENTRIES, _ENTITIES = 20_000, 5_000


def scores(result: Result) -> dict[str, float]:
    """What ``gptf evaluate`` says of the entries that were held out of training; nothing if none were."""
    if isinstance(result.fitted, SampledModel):  # its long run has seen them: the scores are those of the race
        held_out = result.summary["held_out"] or {}
        return {f"held_out_{name}": number for name, number in held_out.items() if number == number}
    if result.held_out is None:
        return {}
    found = evaluate(result.fitted, result.held_out)
    return {f"held_out_{name}": number for name, number in found.items() if number == number}


def draw(result: Result, folder: Path) -> None:
    """Draw a run and its model.

    :param folder: where the figures go; made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    steps = result.history.steps
    if steps:
        numbers, bounds = [step.iteration for step in steps], [step.bound for step in steps]
        figures.bound_curve(numbers, bounds, [step.held_out for step in steps], folder / "bound.png")
    if isinstance(result.fitted, SampledModel):
        figures.trace(result.fitted.history["trace"], folder / "trace.png")
        (folder / "race.json").write_text(json.dumps(result.fitted.history["race"], indent=1) + "\n")
    draw_model(result.fitted, folder)
    if result.held_out is not None:
        draw_predictions(result.fitted, result.held_out, folder)


def draw_predictions(fitted: FittedModel, entries: TensorEntries, folder: Path) -> None:
    """Draw what the model says of entries against their values."""
    every = max(1, len(entries) // _ENTRIES)
    entries = entries[torch.arange(0, len(entries), every)]
    found = predict(fitted, entries)
    if not fitted.binary:
        path = folder / "predicted.png"
        figures.predicted_against_observed(entries.values, found.mean, found.lower, found.upper, path)
        return
    if 0 < int(entries.values.sum()) < len(entries):  # curves of labels of one kind are not defined
        figures.ranking_curves(entries.values.numpy(), found.mean.numpy(), folder / "ranking.png")
    figures.reliability_diagram(entries.values.numpy(), found.mean.numpy(), folder / "reliability.png")


def draw_model(fitted: FittedModel, folder: Path) -> None:
    """Draw what a model has learned: the shares of its parts, or its modes."""
    if isinstance(fitted, SampledModel):
        figures.relevance_bars(shares(fitted), folder / "shares.png", "Shares of the variance")
        return
    fitted = cast(PaperModel, fitted)
    try:
        figures.relevance_bars(relevance(fitted), folder / "relevance.png")
    except InputError:  # a kernel without lengthscales
        return
    for mode, (name, size) in enumerate(zip(fitted.mode_names, fitted.shape, strict=True)):
        rows = torch.arange(0, size, max(1, size // _ENTITIES))
        vocabulary = fitted.vocabularies[mode]
        ids = rows.tolist() if vocabulary is None else [vocabulary[row] for row in rows.tolist()]
        figures.factor_map(scaled_factors(fitted, mode)[rows].numpy(), name, ids, folder / f"factors-{mode}.png")
