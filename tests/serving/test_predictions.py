"""Predictions in the user's units, against SciPy and GPyTorch's own posterior, one entry at a time."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from gptf_gpytorch import InputError, StalePosteriorError, Vocabulary
from gptf_gpytorch.data import TensorEntries
from gptf_gpytorch.serving.predictions import predict
from gptf_gpytorch.training.saved import FittedModel

CELLS = [[0, 0, 0], [13, 8, 7], [5, 3, 2], [1, 8, 0]]


def posterior(fitted: FittedModel, cell: list[int]) -> tuple[float, float]:
    with torch.no_grad():
        q = fitted.model.eval()(torch.tensor([cell]))
    return q.mean.item(), q.variance.item()


def prior(fitted: FittedModel) -> tuple[float, float]:
    return fitted.model.mean_module.constant.item(), fitted.model.covar_module.outputscale.item()


@pytest.mark.parametrize("interval", [0.5, 0.95])
def test_real_values_are_those_of_scipy(gaussian, interval: float) -> None:
    fitted = gaussian.fitted
    found = predict(fitted, CELLS, interval=interval)
    centre, spread = gaussian.train.values.mean().item(), gaussian.train.values.std(correction=0).item()
    for row, cell in enumerate(CELLS):
        m, v = posterior(fitted, cell)
        scale = spread * math.sqrt(v + fitted.mll.likelihood.noise.item())
        oracle = stats.norm(centre + spread * m, scale)
        lower, upper = oracle.interval(interval)
        expected = [oracle.mean(), oracle.std(), lower, upper]
        assert [x[row].item() for x in (found.mean, found.std, found.lower, found.upper)] == pytest.approx(expected)
    assert found.probability is None
    assert list(found.columns()) == ["mean", "std", "lower", "upper"]


@pytest.mark.parametrize("interval", [0.5, 0.95])
def test_labels_are_those_of_scipy(probit, interval: float) -> None:
    found = predict(probit.fitted, CELLS, interval=interval)
    for row, cell in enumerate(CELLS):
        m, v = posterior(probit.fitted, cell)
        f = stats.norm(m, math.sqrt(v))
        # P(y = 1) = E Phi(f), here by integration.
        p = f.expect(stats.norm.cdf, lb=m - 12 * math.sqrt(v), ub=m + 12 * math.sqrt(v))
        lower, upper = stats.norm.cdf(f.interval(interval))
        expected = [p, stats.bernoulli(p).std(), lower, upper]
        got = [x[row].item() for x in (found.mean, found.std, found.lower, found.upper)]
        assert got == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert torch.equal(found.probability, found.mean)
    assert list(found.columns()) == ["mean", "std", "probability", "lower", "upper"]


def test_they_are_good_and_the_intervals_hold_what_they_should(gaussian) -> None:
    found, values = predict(gaussian.fitted, gaussian.test), gaussian.test.values
    assert (found.mean - values).std() < 0.3 * values.std()
    inside = ((found.lower < values) & (values < found.upper)).double().mean().item()
    assert 0.85 < inside < 0.99


def test_an_unknown_entity_gets_the_prior(either) -> None:
    fitted = either.fitted
    found = predict(fitted, [[0, -1, 2], [0, 1, 2], [-1, -1, -1]])
    mean, variance = prior(fitted)
    assert found.latent.mean[[0, 2]].tolist() == pytest.approx([mean, mean])
    assert found.latent.variance[[0, 2]].tolist() == pytest.approx([variance, variance])
    alone = predict(fitted, [[0, 1, 2]])
    assert found.mean[1].item() == pytest.approx(alone.mean.item())
    assert found.std[1].item() == pytest.approx(alone.std.item())
    if fitted.binary:
        assert found.mean[0].item() == pytest.approx(stats.norm.cdf(mean / math.sqrt(1 + variance)))
    else:
        scaling = fitted.scaling
        assert found.mean[0].item() == pytest.approx(scaling.centre + scaling.spread * mean)


def test_entries_arrays_and_nothing(either) -> None:
    entries = either.test
    expected = predict(either.fitted, entries).mean
    assert torch.equal(predict(either.fitted, entries.indices).mean, expected)
    assert torch.equal(predict(either.fitted, entries.indices.numpy().astype(np.int16)).mean, expected)
    torch.testing.assert_close(predict(either.fitted, entries, chunk_size=7).mean, expected, rtol=1e-10, atol=1e-10)
    assert len(predict(either.fitted, entries[:0])) == 0
    assert not expected.requires_grad


def test_a_saved_model_predicts_the_same(either, tmp_path: Path) -> None:
    either.fitted.save(tmp_path / "model")
    again = FittedModel.load(tmp_path / "model")
    for before, after in zip(
        predict(either.fitted, either.test).columns().values(),
        predict(again, either.test).columns().values(),
        strict=True,
    ):
        assert torch.equal(before, after)
    with torch.no_grad():
        again.model.factors[0].add_(0.1)
    with pytest.raises(StalePosteriorError):
        predict(again, either.test)


@pytest.mark.parametrize("interval", [0.0, 1.0, -0.5, 95, math.nan, True, "0.9"])
def test_bad_intervals(gaussian, interval: object) -> None:
    with pytest.raises(InputError, match=r"interval must be a probability in \(0, 1\). Got"):
        predict(gaussian.fitted, CELLS, interval=interval)


@pytest.mark.parametrize(
    ("indices", "complaint"),
    [
        ([[0, 0]], r"indices must be \[n, 3\]"),
        ([[0, 0, 8]], r"indices of mode 2 must lie in \[0, 8\). Got 8 at row 0"),
        ([[0, 0, 0], [-2, 0, 0]], "Got -2 at row 1"),
        ([[0.0, 0.0, 0.0]], "indices must be integers"),
        ([[True, True, True]], "indices must be integers"),
        ("abc", "array of integers"),
    ],
)
def test_bad_indices(gaussian, indices: object, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        predict(gaussian.fitted, indices)


def test_entries_of_other_entities(gaussian) -> None:
    entries = gaussian.test
    users = Vocabulary(list(reversed(list(entries.vocabularies[0]))))
    with pytest.raises(InputError, match=r"read with the model's vocabularies.*Got other ids for mode 'user'"):
        predict(gaussian.fitted, replace(entries, vocabularies=(users, *entries.vocabularies[1:])))
    with pytest.raises(InputError, match=r"the model's modes, user, ad, page. Got user, page, ad"):
        predict(gaussian.fitted, replace(entries, names=("user", "page", "ad")))
    two = TensorEntries([[0, 0]], [1.0], (14, 9), ("user", "ad"))
    with pytest.raises(InputError, match="Got user, ad"):
        predict(gaussian.fitted, two)
    plain = TensorEntries(entries.indices, entries.values, entries.shape)
    assert torch.equal(predict(gaussian.fitted, plain).mean, predict(gaussian.fitted, entries).mean)
