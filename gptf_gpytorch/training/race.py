"""What the race decides: how good each runner is, and which combination of them is the best."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.training.chains import Moments
from gptf_gpytorch.training.minimise import minimise

#: How much even weights are worth, in nats for each runner.
EVEN = 0.3


def predicted(found: Moments, *, binary: bool) -> Tensor:
    """The probability of a 1, or the value, `[n]`."""
    return found.probability if binary else found.mean


def loss(y: Tensor, predictions: Tensor, weights: Tensor | None, *, binary: bool) -> Tensor:
    """The mean log loss of probabilities, or squared error of values."""
    if binary:
        p = predictions.clamp(1e-12, 1.0 - 1e-12)
        each = -(y * p.log() + (1.0 - y) * (1.0 - p).log())
    else:
        each = (y - predictions).square()
    return each.mean() if weights is None else (weights * each).sum() / weights.sum().clamp(min=1e-300)


def stacked(y: Tensor, predictions: Tensor, weights: Tensor | None, *, binary: bool) -> Tensor:
    r"""The convex combination `[m]` of predictions `[m, n]` that makes the held-out entries most likely.

    Minimises n times the log loss, or n / 2 times the log of the squared error, minus :data:`EVEN` times the sum of the logs of
    the weights, which keeps few held-out entries from choosing a single runner by chance.
    """
    n = len(y)

    def objective(logits: Tensor) -> Tensor:
        value = loss(y, logits.softmax(0) @ predictions, weights, binary=binary)
        value = value if binary else 0.5 * (value + 1e-300).log()
        return value - EVEN / n * logits.log_softmax(0).sum()

    (logits,) = minimise(objective, [torch.zeros(len(predictions), dtype=torch.float64)], 300)
    return logits.softmax(0)


def selected(y: Tensor, predictions: Tensor, weights: Tensor | None, most: int, *, binary: bool) -> dict[int, float]:
    """The runners of the long run and their weights: the largest of the best combination, at least a fiftieth each."""
    share = stacked(y, predictions, weights, binary=binary)
    order = share.argsort(descending=True, stable=True)[:most]
    kept = sorted(int(place) for place in order if float(share[place]) >= 0.02)
    total = float(share[kept].sum())
    return {place: float(share[place]) / total for place in kept}


def calibration(y: Tensor, found: Moments, weights: Tensor | None) -> float:
    """What standard deviations of values are to be multiplied by, for the held-out entries to be the most likely."""
    variance = (found.square - found.mean.square()).clamp(min=0.0) + found.noise
    ratio = (y - found.mean).square() / variance.clamp(min=1e-300)
    mean = ratio.mean() if weights is None else (weights * ratio).sum() / weights.sum().clamp(min=1e-300)
    return min(max(math.sqrt(float(mean)), 0.1), 10.0)


def scores(y: Tensor, predictions: Tensor, weights: Tensor | None, *, binary: bool, spread: float) -> dict[str, float]:
    """How good predictions are: AUC, average precision and log loss of labels, RMSE of values in the user's units."""
    value = float(loss(y, predictions, weights, binary=binary))
    if not binary:
        return {"rmse": spread * math.sqrt(value)}
    from sklearn import metrics  # here, because it takes as long to import as torch

    labels, p = y.numpy(), predictions.numpy()
    o = None if weights is None else weights.numpy()
    if not 0 < labels.sum() < len(labels):
        return {"auc": math.nan, "average_precision": math.nan, "log_loss": value}
    return {
        "auc": float(metrics.roc_auc_score(labels, p, sample_weight=o)),
        "average_precision": float(metrics.average_precision_score(labels, p, sample_weight=o)),
        "log_loss": value,
    }


def trivial(train: TensorEntries, held_out: TensorEntries, values: Sequence[Tensor]) -> dict[str, Tensor]:
    """Predictions of the held-out entries that need no model: the training mean, and popularity (of labels).

    Popularity is the sum over modes of log counts of the entry's entities in training, mapped to a probability by a logistic
    regression on the training entries, each not counted itself.

    :param values: of the training entries, in the units of training.
    """
    y = values[0]
    n = len(held_out)
    mean = float(y.mean()) if train.weights is None else float((train.weights * y).sum() / train.weights.sum())
    found = {"training mean": torch.full((n,), mean, dtype=torch.float64)}
    labels = y.numpy()
    if set(np.unique(labels)) != {0.0, 1.0}:
        return found
    from sklearn.linear_model import LogisticRegression

    mine, theirs = np.zeros(len(train)), np.zeros(n)
    for mode in range(len(train.shape)):
        counts = torch.bincount(train.indices[:, mode].long(), minlength=train.shape[mode]).double().numpy()
        mine += np.log(counts[train.indices[:, mode].long().numpy()])
        theirs += np.log1p(counts[held_out.indices[:, mode].long().numpy()])
    o = None if train.weights is None else train.weights.numpy()
    regression = LogisticRegression().fit(mine[:, None], labels, sample_weight=o)
    found["popularity"] = torch.from_numpy(regression.predict_proba(theirs[:, None])[:, 1].copy())
    return found
