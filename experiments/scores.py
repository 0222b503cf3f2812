"""How good predictions are, and whether the difference between two methods is one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from baselines.base import Array
from plan import Cell, Plan
from scipy.stats import ttest_1samp
from sklearn import metrics

from gptf_gpytorch import NumericalError
from gptf_gpytorch.serving.metrics import calibration_error

Cells = Mapping[str, Mapping[str, Any]]
LARGER_IS_BETTER = ("auc", "average_precision")


def score(y: Array, predicted: Array, *, binary: bool, probabilities: bool) -> dict[str, float]:
    """RMSE, MSE and MAE of values; of labels AUC and average precision, and of probabilities also log loss and ECE."""
    if predicted.shape != y.shape or not np.isfinite(predicted).all():
        raise NumericalError(f"Predictions must be {len(y)} finite numbers. Got {predicted!r}.")
    if not binary:
        mse = metrics.mean_squared_error(y, predicted)
        return {"rmse": float(np.sqrt(mse)), "mse": mse, "mae": metrics.mean_absolute_error(y, predicted)}
    found = {
        "auc": metrics.roc_auc_score(y, predicted),
        "average_precision": metrics.average_precision_score(y, predicted),
    }
    if probabilities:
        found |= {"log_loss": metrics.log_loss(y, predicted, labels=[0, 1]), "ece": calibration_error(y, predicted)}
    return {name: float(value) for name, value in found.items()}


@dataclass(frozen=True)
class Row:
    """A method at a rank, over all folds and test sets.

    :param error: the standard error of the mean; None where there is one value.
    :param p: of the paired t-test against ours at the same rank, or against the one ours where it has no rank.
    :param better: whether it is better than ours there, on average.
    :param seconds: of one fit.
    """

    data: str
    label: str
    rank: int | None
    metric: str
    mean: float
    error: float | None
    count: int
    p: float | None
    better: bool
    seconds: float


def main_metric(found: Mapping[str, Any]) -> str:
    """What a table compares: AUC of labels, RMSE of values."""
    return "auc" if "auc" in found["metrics"] else "rmse"


def rows(plan: Plan, cells: Cells, metric: str | None = None) -> list[Row]:
    """The finished rows of a table in its order; a method without a rank is tested against ours at the lowest."""
    done: dict[tuple[str, str, int | None], list[tuple[Cell, Mapping[str, Any]]]] = {}
    for cell in plan.cells:
        if cell.key in cells:
            done.setdefault((cell.data, cell.label, cell.rank), []).append((cell, cells[cell.key]))
    found = []
    for (data, label, rank), fits in done.items():
        name = metric or main_metric(fits[0][1])
        mine = _values(fits, name)
        if not mine:
            continue
        ranks = sorted({c.rank for c in plan.cells if c.data == data and c.label == plan.ours and c.rank is not None})
        against = None if not ranks else ranks[0] if rank is None else rank
        ours = _values(done.get((data, plan.ours, against), []), name) if label != plan.ours else {}
        values = list(mine.values())
        error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
        seconds = float(np.mean([result["seconds"] for _, result in fits]))
        p, difference = _compared(mine, ours)
        better = difference > 0 if name in LARGER_IS_BETTER else difference < 0
        found.append(Row(data, label, rank, name, float(np.mean(values)), error, len(values), p, better, seconds))
    return found


def _values(fits: Sequence[tuple[Cell, Mapping[str, Any]]], metric: str) -> dict[tuple[int, int], float]:
    """A metric by fold and test set, averaged over seeds, so that tests and errors are not about repeated fits."""
    found: dict[tuple[int, int], list[float]] = {}
    for cell, result in fits:
        for place, value in enumerate(result["metrics"].get(metric, [])):
            found.setdefault((cell.fold, place), []).append(value)
    return {key: float(np.mean(values)) for key, values in found.items()}


def _compared(
    mine: Mapping[tuple[int, int], float], ours: Mapping[tuple[int, int], float]
) -> tuple[float | None, float]:
    """Of the test sets that both have, the p-value of the paired t-test, None where nothing varies, and the mean difference."""
    differences = np.array([mine[key] - ours[key] for key in mine if key in ours])
    mean = float(differences.mean()) if len(differences) else 0.0
    if len(differences) < 2 or np.ptp(differences) == 0:
        return None, mean
    return float(ttest_1samp(differences, 0.0).pvalue), mean
