"""Folds, hold-outs and splits in time."""

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptf_gpytorch import DataError, InputError, TensorEntries
from gptf_gpytorch.data import balance, folds, holdout, split_by_time


def entries(n: int = 50, shape: tuple[int, ...] = (10, 20, 30), **options: object) -> TensorEntries:
    cells = np.random.default_rng(0).permutation(int(np.prod(shape)))[:n]
    return TensorEntries(np.stack(np.unravel_index(cells, shape), axis=1), np.arange(1.0, n + 1), shape, **options)


def cells(*parts: TensorEntries) -> set[tuple[int, ...]]:
    return {tuple(cell) for part in parts for cell in part.indices.tolist()}


@given(st.integers(2, 7), st.integers(7, 60), st.sampled_from([0.0, 0.001, 0.1]), st.integers(0, 5))
def test_folds(k: int, n: int, zeros: float, seed: int) -> None:
    known = entries(n)
    splits = folds(known, k, zeros=zeros, seed=seed)
    assert len(splits) == k
    tested: list[float] = []
    for split in splits:
        nonzero = split.test.values[split.test.values != 0].tolist()
        assert sorted([*nonzero, *split.train.values.tolist()]) == known.values.tolist()
        assert len(nonzero) in (n // k, n // k + 1)
        assert len(split.test) - len(nonzero) == round(zeros * (6000 - n))
        assert not cells(split.train) & cells(split.test)
        assert len(cells(split.test)) == len(split.test)
        assert not cells(split.test[split.test.values == 0]) & cells(known)
        trained = balance(split.train, exclude=split.held_out, seed=seed)
        assert not cells(trained) & cells(split.test)
        tested += nonzero
    assert sorted(tested) == known.values.tolist()
    assert splits == folds(known, k, zeros=zeros, seed=seed)


def test_the_papers_share_of_test_zeros() -> None:
    """Enron: 0.1% of 203 x 203 x 200 cells, less 632 known ones, is the published 8,241 (8,240 in three folds)."""
    splits = folds(entries(632, (203, 203, 200)))
    assert [len(split.test) for split in splits] == [127 + 8241] * 2 + [126 + 8241] * 3
    first, second = (cells(split.test[split.test.values == 0]) for split in splits[:2])
    assert len(first & second) < 100  # drawn independently


@given(st.floats(0.05, 0.95), st.integers(1, 4), st.integers(0, 20), st.integers(0, 3))
def test_holdout(fraction: float, sets: int, zeros: int, seed: int) -> None:
    known = entries(200)
    held = round(fraction * 200)
    split = holdout(known, fraction, sets=sets, nonzeros=min(5, held), zeros=zeros, seed=seed)
    assert len(split.train) == 200 - held
    assert len(split.held_out[0]) == held
    assert cells(split.train) | cells(split.held_out[0]) == cells(known)
    assert len(split.tests) == sets
    for test in split.tests:
        assert int((test.values != 0).sum()) == min(5, held)
        assert int((test.values == 0).sum()) == zeros
        assert len(cells(test)) == len(test)
        assert cells(test[test.values != 0]) <= cells(split.held_out[0])
        assert not cells(test[test.values == 0]) & cells(known)
    trained = balance(split.train, exclude=split.held_out, seed=seed)
    assert not cells(trained) & cells(*split.held_out)
    assert split == holdout(known, fraction, sets=sets, nonzeros=min(5, held), zeros=zeros, seed=seed)


def test_a_plain_holdout_tests_all_that_is_held_out() -> None:
    split = holdout(entries(100))
    assert (len(split.train), len(split.test)) == (80, 20)
    assert split.test == split.held_out[0]
    with pytest.raises(InputError, match="Got 2: use `tests`"):
        _ = holdout(entries(100), sets=2).test


def test_by_time() -> None:
    timed = entries(6, times=[5, 1, 5, 3, 9, 5])
    split = split_by_time(timed, at=5)
    assert split.train.times.tolist() == [1, 3]
    assert split.test.times.tolist() == [5, 5, 9, 5]
    assert split_by_time(timed, fraction=0.2).test.times.tolist() == [9]
    assert split_by_time(timed, fraction=0.5).test.times.tolist() == [5, 5, 9, 5]  # one moment, one side
    assert len(balance(split.train, exclude=split.held_out)) == 4


@pytest.mark.parametrize(
    "at", ["2024-01-02", datetime(2024, 1, 2), datetime(2024, 1, 2, tzinfo=UTC), "2024-01-02T02:00+02:00"]
)
def test_by_timestamp(at: object) -> None:
    day = 86_400_000_000
    start = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()) * 10**6
    timed = entries(3, times=[start, start + day - 1, start + day])
    assert split_by_time(timed, at).test.times.tolist() == [start + day]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: folds(entries(3), 5), "k must be at most the number of entries, 3. Got 5"),
        (lambda: folds(entries(9), 1), "k must be an integer of at least 2"),
        (lambda: folds(entries(9), zeros=1.0), r"in \[0, 1\)"),
        (lambda: holdout(entries(9), 1.0), r"fraction must lie in \(0, 1\)"),
        (lambda: holdout(entries(3), 0.1), "must leave entries on both sides. Got 0 of 3"),
        (lambda: holdout(entries(10), nonzeros=3), "at most the 2 that are held out. Got 3"),
        (lambda: split_by_time(entries(3), 1), "must have times"),
        (lambda: split_by_time(entries(3, times=[1, 2, 3])), "Either at or fraction"),
        (lambda: split_by_time(entries(3, times=[1, 2, 3]), fraction=2), r"fraction must lie in \(0, 1\)"),
        (lambda: split_by_time(entries(3, times=[1, 2, 3]), at="soon"), "Got 'soon'"),
        (lambda: split_by_time(entries(3, times=[1, 2, 3]), at=True), "Got True"),
    ],
)
def test_options_that_make_no_sense(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_a_split_in_time_has_two_sides() -> None:
    with pytest.raises(DataError, match=r"on both sides. Got times from 1 to 3, split at 7"):
        split_by_time(entries(3, times=[1, 2, 3]), at=7)
