"""How well a fitted model predicts entries whose values are known."""

import math
import warnings
from typing import Any

import numpy as np
import torch

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.errors import DataError, DataWarning
from gptf_gpytorch.likelihoods import log_predictive
from gptf_gpytorch.serving.predictions import Predictions, predict
from gptf_gpytorch.training.saved import FittedModel

Array = np.ndarray[Any, Any]
BINS = 10


def evaluate(fitted: FittedModel, entries: TensorEntries) -> dict[str, float]:
    """Metrics of the predictions of entries, weighted where entries have weights.

    For real values: ``rmse``, ``mse``, ``mae`` in the user's units. For labels: ``auc``, ``average_precision``,
    ``log_loss``, and ``ece``, the expected calibration error. For both ``nlpd``, the mean negative log predictive
    density. What is not defined (``auc`` of labels that are all the same, ``average_precision`` without a 1) is NaN, with a
    :class:`~gptf_gpytorch.DataWarning`.

    :param entries: entries that were read with the model's vocabularies.

    Example:
        >>> sorted(evaluate(fitted, entries))
        ['mae', 'mse', 'nlpd', 'rmse']

    """
    if entries.weights is not None:
        entries = entries[entries.weights > 0]
    if not len(entries):
        raise DataError("There must be entries to evaluate, of a weight above 0. Got none.")
    predictions = predict(fitted, entries)
    y = entries.values.double().numpy()
    weights = None if entries.weights is None else entries.weights.double().numpy()
    of = _of_labels if fitted.binary else _of_values
    found = of(y, predictions, weights)
    nlpd = float(np.average(-log_density(fitted, entries, predictions), weights=weights))
    return {**{name: float(value) for name, value in found.items()}, "nlpd": nlpd}


def log_density(fitted: FittedModel, entries: TensorEntries, predictions: Predictions) -> Array:
    """The log predictive density of each entry `[n]`, in the user's units; accurate in the tails."""
    y = fitted.scaling.scaled(entries.values)
    with torch.no_grad():
        found = log_predictive(fitted.likelihood, *predictions.latent, y) - math.log(fitted.scaling.spread)
    array: Array = found.numpy()
    return array


def _of_values(y: Array, predictions: Predictions, weights: Array | None) -> dict[str, float]:
    from sklearn import metrics  # here, because it takes as long to import as torch

    mean = predictions.mean.numpy()
    mse = metrics.mean_squared_error(y, mean, sample_weight=weights)
    return {"rmse": math.sqrt(mse), "mse": mse, "mae": metrics.mean_absolute_error(y, mean, sample_weight=weights)}


def _of_labels(y: Array, predictions: Predictions, weights: Array | None) -> dict[str, float]:
    from sklearn import metrics  # here, because it takes as long to import as torch

    bad = np.flatnonzero((y != 0) & (y != 1))
    if len(bad):
        raise DataError(f"Labels must be 0 or 1. Got {y[bad[0]]:g} at entry {bad[0]}.")
    p = predictions.mean.numpy()
    # Where Phi is 0 or 1 in double precision, the argument of Phi still ranks.
    score = (predictions.latent.mean / (1.0 + predictions.latent.variance).sqrt()).numpy()
    auc = average_precision = math.nan
    ones = int(y.sum())
    if 0 < ones < len(y):
        auc = metrics.roc_auc_score(y, score, sample_weight=weights)
    else:
        undefined = "auc and average_precision are" if not ones else "auc is"
        warnings.warn(
            f"Labels of both kinds are needed to rank them. Got {ones} ones of {len(y)}: {undefined} not defined.",
            DataWarning,
            stacklevel=3,
        )
    if ones:
        average_precision = metrics.average_precision_score(y, score, sample_weight=weights)
    return {
        "auc": auc,
        "average_precision": average_precision,
        "log_loss": metrics.log_loss(y, p, sample_weight=weights, labels=[0, 1]),
        "ece": calibration_error(y, p, weights),
    }


def calibration_error(y: Array, p: Array, weights: Array | None = None) -> float:
    r"""The expected calibration error :math:`\sum_b \frac{n_b}{n} |\bar y_b - \bar p_b|` over ten bins of equal width.

    scikit-learn has the curve (without weights), and no function for its distance from the diagonal.

    :param y: labels `[n]`.
    :param p: probabilities of a 1, `[n]`.

    Example:
        >>> calibration_error(np.array([0.0, 1.0, 1.0, 1.0]), np.full(4, 0.75))
        0.0

    """
    weights = np.ones(len(y)) if weights is None else weights
    bins = np.minimum((p * BINS).astype(int), BINS - 1)
    difference = np.bincount(bins, weights * (y - p), minlength=BINS)
    return float(np.abs(difference).sum() / weights.sum())
