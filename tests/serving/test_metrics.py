"""Metrics against loops over the entries."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.calibration import calibration_curve

from gptf_gpytorch import DataError, DataWarning
from gptf_gpytorch.data import TensorEntries
from gptf_gpytorch.serving.metrics import calibration_error, evaluate, log_density
from gptf_gpytorch.serving.predictions import predict
from gptf_gpytorch.variational.prediction import Marginals


def weighted(entries: TensorEntries) -> TensorEntries:
    return replace(entries, weights=torch.arange(len(entries)).double() % 4)


def repeated(entries: TensorEntries) -> TensorEntries:
    """Each entry as often as its weight says."""
    rows = [row for row, weight in enumerate(entries.weights.tolist()) for _ in range(int(weight))]
    return replace(entries[rows], weights=None)


def test_real_values(gaussian) -> None:
    found = evaluate(gaussian.fitted, gaussian.test)
    p = predict(gaussian.fitted, gaussian.test)
    square = absolute = density = 0.0
    for y, mean, std in zip(gaussian.test.values.tolist(), p.mean.tolist(), p.std.tolist(), strict=True):
        square += (y - mean) ** 2
        absolute += abs(y - mean)
        density += stats.norm.logpdf(y, mean, std)
    n = len(gaussian.test)
    expected = {"rmse": math.sqrt(square / n), "mse": square / n, "mae": absolute / n, "nlpd": -density / n}
    assert found == pytest.approx(expected)
    assert list(found) == ["rmse", "mse", "mae", "nlpd"]


def test_labels(probit) -> None:
    found = evaluate(probit.fitted, probit.test)
    p, y = predict(probit.fitted, probit.test).mean.tolist(), probit.test.values.tolist()
    ones = [a for a, label in zip(p, y, strict=True) if label]
    zeros = [a for a, label in zip(p, y, strict=True) if not label]
    auc = sum((a > b) + 0.5 * (a == b) for a in ones for b in zeros) / (len(ones) * len(zeros))
    order = sorted(zip(p, y, strict=True), reverse=True)
    hits, precision = 0.0, 0.0
    for place, (_, label) in enumerate(order, start=1):
        hits += label
        precision += label * hits / place
    ece = 0.0
    for low in range(10):
        inside = [(a, b) for a, b in zip(p, y, strict=True) if min(int(10 * a), 9) == low]
        ece += abs(sum(b - a for a, b in inside)) / len(p)
    loss = -sum(math.log(a if b else 1 - a) for a, b in zip(p, y, strict=True)) / len(p)
    expected = {"auc": auc, "average_precision": precision / len(ones), "log_loss": loss, "ece": ece, "nlpd": loss}
    assert found == pytest.approx(expected, rel=1e-6)
    assert list(found) == ["auc", "average_precision", "log_loss", "ece", "nlpd"]
    assert found["auc"] > 0.9


def test_a_weight_counts_as_repetition(either) -> None:
    entries = weighted(either.test)
    assert evaluate(either.fitted, entries) == pytest.approx(evaluate(either.fitted, repeated(entries)))
    with pytest.raises(DataError, match=r"of a weight above 0. Got none"):
        evaluate(either.fitted, replace(entries, weights=torch.zeros(len(entries))))


def test_the_calibration_error_is_scikit_learns_curve() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(size=500)
    y = (rng.uniform(size=500) < 0.5 + 0.4 * np.sin(9 * p)).astype(float)  # too high here, too low there
    true, mean = calibration_curve(y, p, n_bins=10)
    counts = np.histogram(p, bins=10, range=(0.0, 1.0))[0]
    assert calibration_error(y, p) == pytest.approx(np.sum(counts * np.abs(true - mean)) / 500)
    assert calibration_error(np.array([1.0, 0.0]), np.array([1.0, 0.0])) == 0.0
    assert calibration_error(np.array([0.0, 1.0]), np.array([1.0, 0.0])) == 1.0


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_labels_of_one_kind_have_no_auc(probit, label: float) -> None:
    entries = probit.test[probit.test.values == label]
    with pytest.warns(DataWarning, match="auc"):
        found = evaluate(probit.fitted, entries)
    assert math.isnan(found["auc"])
    assert math.isnan(found["average_precision"]) == (label == 0.0)
    assert all(math.isfinite(found[name]) for name in ("log_loss", "ece", "nlpd"))


def test_a_label_held_for_impossible_has_a_finite_density(probit) -> None:
    entries = probit.test[:2]
    found = predict(probit.fitted, entries)
    sure = replace(found, latent=Marginals(torch.tensor([-60.0, 60.0]).double(), torch.zeros(2).double()))
    labels = replace(entries, values=torch.tensor([1.0, 1.0]).double())
    assert log_density(probit.fitted, labels, sure).tolist() == pytest.approx([stats.norm.logcdf(-60.0), 0.0])


def test_bad_input(probit) -> None:
    with pytest.raises(DataError, match="There must be entries to evaluate"):
        evaluate(probit.fitted, probit.test[:0])
    with pytest.raises(DataError, match=r"Labels must be 0 or 1. Got [23] at entry 0"):
        evaluate(probit.fitted, replace(probit.test, values=probit.test.values + 2))
