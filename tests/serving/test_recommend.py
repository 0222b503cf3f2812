"""Recommendations against a loop over the candidates."""

import re
from dataclasses import replace

import pytest
import torch

from gptf_gpytorch import DataError, InputError
from gptf_gpytorch.data import TensorEntries
from gptf_gpytorch.errors import ApproximationWarning
from gptf_gpytorch.serving import averages
from gptf_gpytorch.serving.predictions import predict
from gptf_gpytorch.serving.recommend import recommend
from gptf_gpytorch.training.fit import fit
from gptf_gpytorch.training.saved import FittedModel

GIVEN = {"page": "p03", "user": "u05"}


def naive(fitted: FittedModel, key: str) -> list[tuple[str, float]]:
    """Every ad's prediction one by one, best first."""
    found = []
    for ad in range(fitted.shape[1]):
        p = predict(fitted, [[5, ad, 3]])
        found.append((f"a{ad:02d}", (p.mean if key == "mean" else p.latent.mean).item(), p.std.item()))
    return sorted(found, key=lambda item: -item[1])


@pytest.mark.parametrize("top", [1, 4, 100])
def test_the_best_come_first(either, top: int) -> None:
    found = recommend(either.fitted, GIVEN, "ad", top)
    expected = naive(either.fitted, "mean")[:top]
    assert [item.id for item in found] == [name for name, *_ in expected]
    assert [item.mean for item in found] == pytest.approx([mean for _, mean, _ in expected])
    assert [item.std for item in found] == pytest.approx([std for *_, std in expected])
    for item in found:
        assert item.lower < item.mean < item.upper
        assert item.probability == (item.mean if either.fitted.binary else None)


def test_by_the_mean_of_f(probit) -> None:
    assert [item.id for item in recommend(probit.fitted, GIVEN, "ad", 9, by="mean")] == [
        name for name, *_ in naive(probit.fitted, "latent")
    ]
    orders = {
        by: [
            [item.id for item in recommend(probit.fitted, {"user": f"u{user:02d}", "page": "p03"}, "ad", 9, by=by)]
            for user in range(14)
        ]
        for by in ("mean", "probability")
    }
    cells = torch.cartesian_prod(torch.arange(14), torch.arange(9), torch.tensor([3]))
    f = predict(probit.fitted, cells).latent.mean.reshape(14, 9)
    expected = [[f"a{ad:02d}" for ad in row] for row in f.argsort(dim=1, descending=True).tolist()]
    assert orders["mean"] == expected
    assert orders["probability"] != expected


def test_seen_entries_are_left_out(either) -> None:
    everything = [item.id for item in recommend(either.fitted, GIVEN, "ad", 100)]
    seen = {ids[1] for ids in either.train.ids() if ids[0] == "u05" and ids[2] == "p03"}
    assert seen
    left = recommend(either.fitted, GIVEN, "ad", 100, exclude=either.train)
    assert [item.id for item in left] == [name for name in everything if name not in seen]
    cells = torch.tensor([[5, ad, 3] for ad in range(9)])
    assert recommend(either.fitted, GIVEN, "ad", exclude=TensorEntries(cells, torch.ones(9), (14, 9, 8))) == []
    unknown = TensorEntries([[5, -1, 3]], [1.0], (14, 9, 8), unseen="prior")
    assert len(recommend(either.fitted, GIVEN, "ad", 100, exclude=unknown)) == 9


def mixture(fitted: FittedModel, given: dict[str, str]) -> dict[str, tuple[float, float, float]]:
    """Of every ad the mean of f, its variance and the average of the probability, by a loop over all that is open."""
    users = [int(given["user"][1:])] if "user" in given else range(fitted.shape[0])
    pages = [int(given["page"][1:])] if "page" in given else range(fitted.shape[2])
    found = {}
    for ad in range(fitted.shape[1]):
        f = predict(fitted, [[user, ad, page] for user in users for page in pages]).latent
        chance = torch.special.ndtr(f.mean / (1 + f.variance).sqrt()).mean()
        variance = f.variance.mean() + f.mean.var(correction=0)
        found[f"a{ad:02d}"] = (float(f.mean.mean()), float(variance), float(chance))
    return found


@pytest.mark.parametrize("given", [{"user": "u05"}, {"page": "p03"}, {}])
def test_modes_that_are_left_open_are_averaged_over(either, given: dict) -> None:
    fitted, expected = either.fitted, mixture(either.fitted, given)
    found = recommend(fitted, given, "ad", 100)
    key = 2 if fitted.binary else 0
    assert [item.id for item in found] == sorted(expected, key=lambda ad: -expected[ad][key])
    for item in found:
        mean, variance, chance = expected[item.id]
        if fitted.binary:
            assert item.mean == item.probability == pytest.approx(chance, rel=1e-9)
        else:
            scale, noise = fitted.scaling, fitted.mll.likelihood.noise.item()
            assert item.mean == pytest.approx(scale.centre + scale.spread * mean, rel=1e-9)
            assert item.std == pytest.approx(scale.spread * (variance + noise) ** 0.5, rel=1e-6)
        assert item.lower < item.mean < item.upper


def test_by_the_average_of_f(probit) -> None:
    expected = mixture(probit.fitted, {"user": "u05"})
    found = recommend(probit.fitted, {"user": "u05"}, "ad", 9, by="mean")
    assert [item.id for item in found] == sorted(expected, key=lambda ad: -expected[ad][0])
    assert [item.probability for item in found] == pytest.approx([expected[item.id][2] for item in found])


def test_other_kernels_average_over_combinations_or_a_sample_of_them(probit, monkeypatch) -> None:
    options = {"likelihood": "probit", "validation": 0.0, "rank": 2, "inducing": 20, "max_iterations": 5}
    fitted = fit(probit.train, method="paper", kernel="matern52", **options).fitted
    expected = mixture(fitted, {"user": "u05"})
    for item in recommend(fitted, {"user": "u05"}, "ad", 9):
        assert item.probability == pytest.approx(expected[item.id][2], rel=1e-9)
    monkeypatch.setattr(averages, "_BUDGET", 9 * 60)  # of 14 x 8 combinations
    everything = mixture(fitted, {})
    with pytest.warns(ApproximationWarning, match="a seeded sample of the 112 combinations"):
        sampled = recommend(fitted, {}, "ad", 9)
    with pytest.warns(ApproximationWarning):
        assert sampled == recommend(fitted, {}, "ad", 9), "the sample is seeded"
    for item in sampled:
        assert item.probability == pytest.approx(everything[item.id][2], abs=0.15)
        assert item.probability != pytest.approx(everything[item.id][2], rel=1e-9)


def test_a_short_list_of_candidates_is_said_to_be_one(probit, monkeypatch) -> None:
    monkeypatch.setattr("gptf_gpytorch.serving.recommend._SHORTLIST", 4)
    with pytest.warns(ApproximationWarning, match="of 9 candidates, the 4 that are best by the mean and variance of f"):
        assert len(recommend(probit.fitted, {"user": "u05"}, "ad", 2)) == 2
    assert len(recommend(probit.fitted, {"user": "u05"}, "ad", 2, by="mean")) == 2  # its order is exact
    assert len(recommend(probit.fitted, GIVEN, "ad", 2)) == 2


def test_what_was_seen_with_any_open_entity_is_left_out(either) -> None:
    some = either.train[:60]
    seen = {ids[1] for ids in some.ids() if ids[0] == "u05"}
    assert 0 < len(seen) < 9
    left = recommend(either.fitted, {"user": "u05"}, "ad", 100, exclude=some)
    assert {item.id for item in left} == {f"a{ad:02d}" for ad in range(9)} - seen


def test_ids_as_a_command_line_has_them(numbered) -> None:
    expected = recommend(numbered, {"user": 105, "ad": 2}, "page", 3)
    assert recommend(numbered, {"user": "105", "ad": "2"}, "page", 3) == expected
    assert recommend(numbered, {"user": 105, "page": "p03"}, "ad", 1)[0].id in range(9)
    for given in ({"user": "0105", "ad": 2}, {"user": 7, "ad": 2}, {"user": True, "ad": 2}, {"user": None, "ad": 2}):
        with pytest.raises(DataError, match="Mode 'user' must have the id: it has 14 integers"):
            recommend(numbered, given, "page")
    for ad in (9, -1, "x", 1.0, False, "02"):
        with pytest.raises(DataError, match=r"Mode 'ad' has no ids: its indices lie in \[0, 9\)"):
            recommend(numbered, {"user": 105, "ad": ad}, "page")


@pytest.mark.parametrize(
    ("given", "mode", "options", "complaint"),
    [
        (GIVEN, "adds", {}, "must be one of the model's: user, ad, page. Got 'adds'. Did you mean 'ad'?"),
        ({"usr": "u05", "page": "p03"}, "ad", {}, "Got 'usr'. Did you mean 'user'?"),
        ({**GIVEN, "ad": "a01"}, "ad", {}, "other than the one that is ranked. Got 'ad'"),
        ({**GIVEN, "user": "eve"}, "ad", {}, "Mode 'user' must have the id: it has 14 strings. Got 'eve'"),
        ({**GIVEN, "user": 5}, "ad", {}, "Got 5"),
        (GIVEN, "ad", {"top": 0}, "top must be a whole number from 1 on. Got 0"),
        (GIVEN, "ad", {"top": 2.5}, "Got 2.5"),
        (GIVEN, "ad", {"by": "probablity"}, "Got 'probablity'. Did you mean probability?"),
    ],
)
def test_bad_input(probit, given: dict, mode: str, options: dict, complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        recommend(probit.fitted, given, mode, **options)


def test_real_values_have_no_probability(gaussian) -> None:
    with pytest.raises(InputError, match="by must be 'mean'"):
        recommend(gaussian.fitted, GIVEN, "ad", by="probability")
    other = replace(gaussian.train, vocabularies=(gaussian.newcomer.vocabularies[0], *gaussian.train.vocabularies[1:]))
    with pytest.raises(InputError, match="Got other ids for mode 'user'"):
        recommend(gaussian.fitted, GIVEN, "ad", exclude=other)
