"""Figures that people would rather look at than read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gptf_gpytorch.errors import InputError


def _axes(title: str, across: str, up: str, size: tuple[float, float] = (6.0, 4.0)) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("Figures need matplotlib: the extra `plots`. Got no matplotlib.") from error
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=across, ylabel=up)
    axes.spines[["top", "right"]].set_visible(False)
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


def relevance_bars(shares: dict[str, float], path: Path) -> None:
    """How much each mode moves the function."""
    figure, axes = _axes("Relevance of the modes", "share", "", (5.5, 0.6 + 0.5 * len(shares)))
    axes.barh(list(shares), list(shares.values()), color="C0")
    axes.invert_yaxis()
    figure.savefig(path, dpi=110)
