"""Figures that people would rather look at than read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gptf_gpytorch.errors import InputError

Array = np.ndarray[Any, Any]


def _figure(size: tuple[float, float], count: int = 1) -> tuple[Any, list[Any]]:
    """A figure with so many plots side by side."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("Figures need matplotlib: the extra `plots`. Got no matplotlib.") from error
    figure = Figure(figsize=size, layout="constrained")
    plots = list(figure.subplots(1, count, squeeze=False)[0])
    for axes in plots:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, plots


def _axes(title: str, across: str, up: str, size: tuple[float, float] = (6.0, 4.0)) -> tuple[Any, Any]:
    figure, (axes,) = _figure(size)
    axes.set(title=title, xlabel=across, ylabel=up)
    return figure, axes


def bound_curve(steps: Sequence[int], bounds: Sequence[float], held_out: Sequence[float | None], path: Path) -> None:
    """The bound of an entry, step by step, and the held-out score beside it if there is one."""
    figure, axes = _axes("Training", "step", "bound of an entry")
    axes.plot(steps, bounds, label="bound", color="C0")
    scored = [(step, score) for step, score in zip(steps, held_out, strict=True) if score is not None]
    if scored:
        axes.plot(*zip(*scored, strict=True), label="held-out log density", color="C1")
        axes.legend(frameon=False)
    # The first steps are far below the rest: show what came after them.
    low, high = np.quantile(bounds, 0.1), max(bounds)
    axes.set_ylim(bottom=low - 0.5 * (high - low) - 1e-9)
    figure.savefig(path, dpi=110)


def predicted_against_observed(observed: Any, mean: Any, lower: Any, upper: Any, path: Path) -> None:
    """Predictions with their intervals over what was observed; at most 400 of them, evenly chosen."""
    observed, mean, lower, upper = (np.asarray(part, dtype=float) for part in (observed, mean, lower, upper))
    inside = float(np.mean((observed >= lower) & (observed <= upper)))
    chosen = np.linspace(0, len(observed) - 1, min(len(observed), 400)).astype(int)
    x, y = observed[chosen], mean[chosen]
    figure, axes = _axes(
        f"{100 * inside:.0f}% of the values lie in their intervals", "observed", "predicted", (5.5, 5.0)
    )
    errors = np.maximum([y - lower[chosen], upper[chosen] - y], 0.0)
    axes.errorbar(x, y, errors, fmt="o", markersize=3, elinewidth=0.6, alpha=0.6, color="C0")
    ends = [min(x.min(), y.min()), max(x.max(), y.max())]
    axes.plot(ends, ends, color="0.4", linewidth=1)
    figure.savefig(path, dpi=110)


def trace(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The noise of each chain, sweep by sweep, and the scores of the held-out entries in the race."""
    figure, (left, right) = _figure((9.5, 4.0), 2)
    chains = dict.fromkeys((record["stage"], record["chain"]) for record in records)
    for stage, chain in chains:
        mine = [record for record in records if (record["stage"], record["chain"]) == (stage, chain)]
        left.plot([r["iteration"] for r in mine], [r["noise"] for r in mine], color="C0" if stage == "long" else "C1")
        scored = [(r["iteration"], r["held_out"]) for r in mine if r["held_out"] is not None]
        if scored:
            right.plot(*zip(*scored, strict=True), color="C1")
    left.set(title="Noise (race, then long run)", xlabel="sweep", ylabel="standard deviation")
    right.set(title="Race", xlabel="sweep", ylabel="minus the loss of held-out entries")
    figure.savefig(path, dpi=110)


def relevance_bars(shares: dict[str, float], path: Path, title: str = "Relevance of the modes") -> None:
    """How much each mode, or each part of a model, moves the function."""
    figure, axes = _axes(title, "share", "", (5.5, 0.6 + 0.5 * len(shares)))
    axes.barh(list(shares), list(shares.values()), color="C0")
    axes.invert_yaxis()
    figure.savefig(path, dpi=110)


def ranking_curves(labels: Any, probability: Any, path: Path) -> None:
    """The ROC curve and precision over recall."""
    from sklearn import metrics

    figure, (left, right) = _figure((9.5, 4.5), 2)
    wrong, right_share, _ = metrics.roc_curve(labels, probability)
    left.plot(wrong, right_share, color="C0", label=f"AUC {metrics.auc(wrong, right_share):.3f}")
    left.plot([0, 1], [0, 1], color="0.4", linewidth=1)
    left.set(title="ROC", xlabel="false positive rate", ylabel="true positive rate")
    left.legend(frameon=False, loc="lower right")
    precision, recall, _ = metrics.precision_recall_curve(labels, probability)
    average = metrics.average_precision_score(labels, probability)
    right.plot(recall, precision, color="C0", label=f"average precision {average:.3f}")
    right.axhline(float(np.mean(labels)), color="0.4", linewidth=1)
    right.set(title="Precision over recall", xlabel="recall", ylabel="precision", ylim=(0, 1.02))
    right.legend(frameon=False, loc="lower left")
    figure.savefig(path, dpi=110)


def reliability_diagram(labels: Any, probability: Any, path: Path) -> None:
    """How often a label is 1 where the model says how likely that is, and how often it says so."""
    labels, probability = np.asarray(labels, dtype=float), np.asarray(probability, dtype=float)
    bins = np.minimum((probability * 10).astype(int), 9)
    counts = np.bincount(bins, minlength=10)
    there = counts > 0
    observed = np.bincount(bins, labels, minlength=10)[there] / counts[there]
    predicted = np.bincount(bins, probability, minlength=10)[there] / counts[there]
    figure, axes = _axes("Reliability", "predicted probability", "share of ones", (5.5, 5.0))
    axes.bar(np.arange(10) / 10 + 0.05, counts / counts.sum(), width=0.09, color="0.85", label="share of the entries")
    axes.plot([0, 1], [0, 1], color="0.4", linewidth=1)
    axes.plot(predicted, observed, "o-", color="C0", label="observed")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)


def factor_map(factors: Array, name: str, ids: Sequence[Any], path: Path) -> None:
    """The entities of a mode in the two directions in which their factors differ most; named where there are few."""
    centred = factors - factors.mean(axis=0)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    places = np.zeros((len(factors), 2))
    places[:, : min(2, factors.shape[1])] = (centred @ directions.T)[:, :2]
    shares = values**2 / max(float((values**2).sum()), 1e-300)
    across, up = (f"{100 * share:.0f}% of the spread" for share in [*shares, 0.0][:2])
    figure, axes = _axes(f"Factors of {name}", across, up, (5.5, 5.0))
    axes.scatter(*places.T, s=10 if len(places) <= 1000 else 2, alpha=0.7, color="C0")
    if len(places) <= 30:
        for place, item in zip(places, ids, strict=True):
            axes.annotate(str(item), place, fontsize=7, xytext=(3, 3), textcoords="offset points")
    figure.savefig(path, dpi=110)
