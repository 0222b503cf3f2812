"""Sampled zeros: never known, never excluded, never twice, always the same for a seed, and uniform."""

import math
import resource
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gptf_gpytorch import DataError, InputError, TensorEntries
from gptf_gpytorch.data import balance, sample_zeros
from gptf_gpytorch.data.cells import CellKeys, contains


def random_entries(shape: tuple[int, ...], n: int, seed: int = 0, **options: object) -> TensorEntries:
    rng = np.random.default_rng(seed)
    cells = rng.permutation(math.prod(shape))[:n] if math.prod(shape) < 10**6 else None
    if cells is None:
        indices = np.stack([rng.integers(d, size=n) for d in shape], axis=1)
    else:
        indices = np.stack(np.unravel_index(cells, shape), axis=1)
    return TensorEntries(indices, np.ones(n), shape, **options)


def cells(*parts: TensorEntries) -> list[tuple[int, ...]]:
    return [tuple(cell) for part in parts for cell in part.indices.tolist()]


@st.composite
def problem(draw: st.DrawFn) -> tuple[TensorEntries, TensorEntries, int]:
    """Known entries, excluded ones (which may overlap), and how many cells are free."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    total = math.prod(shape)
    known = random_entries(shape, draw(st.integers(0, total)), draw(st.integers(0, 99)))
    excluded = random_entries(shape, draw(st.integers(0, total)), draw(st.integers(0, 99)))
    return known, excluded, total - len({*cells(known), *cells(excluded)})


@given(problem(), st.data(), st.integers(0, 2**31))
def test_the_guarantees(case: tuple[TensorEntries, TensorEntries, int], data: st.DataObject, seed: int) -> None:
    known, excluded, free = case
    count = data.draw(st.integers(0, free))
    zeros = sample_zeros(known, count, exclude=excluded, seed=seed)
    assert len(zeros) == count
    assert len(set(cells(zeros))) == count
    assert not {*cells(zeros)} & {*cells(known), *cells(excluded)}
    assert not zeros.values.any()
    assert zeros == sample_zeros(known, count, exclude=[excluded[:1], excluded[1:]], seed=seed)
    with pytest.raises(
        DataError, match=f"Got {free + 1:,} zeros asked for, and {free:,} such cells of {known.cells:,}"
    ):
        sample_zeros(known, free + 1, exclude=excluded, seed=seed)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 9))
def test_the_guarantees_with_more_cells_than_64_bits_count(n: int, count: int, seed: int) -> None:
    """Only two entities a mode are used, so that draws do meet what is known."""
    shape = (2**40, 2**40, 3)
    assert not CellKeys(shape).plain
    known = random_entries(shape, n, seed)
    zeros = sample_zeros(known, count, seed=seed)
    assert len(set(cells(zeros))) == count
    assert not {*cells(zeros)} & {*cells(known)}


@given(st.lists(st.tuples(*[st.integers(0, 2**40 - 1)] * 2, st.integers(0, 2)), min_size=1), st.booleans())
def test_keys_are_one_to_one_and_ordered(rows: list[tuple[int, int, int]], huge: bool) -> None:
    keys = CellKeys((2**40, 2**40, 3) if huge else (2**40, 2**21, 3))
    indices = np.array(rows) % np.array(keys.shape)
    found = keys.of(indices)
    assert np.array_equal(keys.indices(found), indices)
    ordered = sorted(map(tuple, indices.tolist()))
    assert [tuple(cell) for cell in keys.indices(np.sort(found)).tolist()] == ordered
    half = np.unique(found[::2])
    assert contains(half, found).tolist() == [
        tuple(cell) in {*map(tuple, indices[::2].tolist())} for cell in indices.tolist()
    ]


@pytest.mark.parametrize("count", [3, 17], ids=["few", "most"])
def test_every_free_cell_is_as_likely(count: int) -> None:
    """20 free cells of 24; the number of times each is drawn is within 5 standard deviations."""
    known = TensorEntries([[0, 0], [1, 3], [5, 3], [2, 2]], np.ones(4), (6, 4))
    rounds = 3000
    drawn = np.zeros((6, 4))
    first = np.zeros((6, 4))
    for seed in range(rounds):
        indices = sample_zeros(known, count, seed=seed).indices.numpy()
        drawn[tuple(indices.T)] += 1
        first[tuple(indices[0])] += 1
    free = np.ones((6, 4), dtype=bool)
    free[tuple(known.indices.numpy().T)] = False
    assert not drawn[~free].any()
    for counts, share in ((drawn, count / 20), (first, 1 / 20)):
        spread = math.sqrt(rounds * share * (1 - share))
        assert np.abs(counts[free] - rounds * share).max() < 5 * spread


def test_a_million_zeros_of_a_tensor_with_1e12_cells() -> None:
    known = random_entries((10_000,) * 3, 10**6)
    sample_zeros(known, 10)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    zeros = sample_zeros(known, 10**6)
    assert time.process_time() - started < 10  # about 1 on an idle machine
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # kB: O(N), not O(cells)
    keys = CellKeys(known.shape)
    assert len(np.unique(keys.of(zeros.indices))) == 10**6
    assert not contains(np.unique(keys.of(known.indices)), keys.of(zeros.indices)).any()


def test_balance_is_the_papers_training_set() -> None:
    known, test = random_entries((20, 30, 10), 600).shard(0, 2), random_entries((20, 30, 10), 600).shard(1, 2)
    balanced = balance(known, exclude=test, seed=3)
    assert len(balanced) == 600
    assert int((balanced.values == 0).sum()) == 300
    assert balanced[:300] == known
    assert not {*cells(balanced)} & {*cells(test)}
    assert len(set(cells(balanced))) == 600
    assert balanced == balance(known, exclude=test, seed=3)
    assert balanced != balance(known, exclude=test, seed=4)
    assert len(balance(known, 2.5, exclude=test)) == 300 + 750


def test_a_test_entry_among_the_training_entries_is_an_error() -> None:
    known = random_entries((5, 5), 10)
    with pytest.raises(DataError, match=r"must not be in what is excluded. Got 1 that are, \(\d, \d\) at row 4 first"):
        balance(known, exclude=known[4:5])


def test_known_zeros_count() -> None:
    known = random_entries((5, 5), 12)
    mixed = TensorEntries(known.indices, [1.0] * 4 + [0.0] * 8, (5, 5))
    fewer = balance(mixed, seed=1)
    assert (len(fewer), int((fewer.values != 0).sum())) == (8, 4)
    assert {*cells(fewer)} <= {*cells(mixed)}
    more = balance(mixed, 3.0, seed=1)
    assert (len(more), {*cells(mixed)} <= {*cells(more)}) == (16, True)


def test_weights() -> None:
    known = random_entries((5, 5), 6)
    assert balance(known).weights is None
    assert balance(known, weight=0.5).weights.tolist() == [1.0] * 6 + [0.5] * 6
    weighted = TensorEntries(known.indices, known.values, (5, 5), weights=[2.0] * 6)
    assert balance(weighted).weights.tolist() == [2.0] * 6 + [1.0] * 6
    with pytest.raises(InputError, match=r"weight must be finite and at least 0. Got -1"):
        sample_zeros(known, 2, weight=-1)


def test_times_are_left_out_of_a_balanced_set() -> None:
    timed = random_entries((5, 5), 6, times=np.arange(6))
    assert balance(timed).times is None


def test_candidates_from_domain_knowledge() -> None:
    """Ads that a user could have seen: only those of the user's own page."""
    known = TensorEntries([[0, 0], [1, 3]], [1.0, 1.0], (2, 6))
    test = TensorEntries([[0, 1]], [1.0], (2, 6))

    def pages(generator: np.random.Generator):
        while True:
            users = generator.integers(2, size=4)
            yield np.stack([users, 3 * users + generator.integers(3, size=4)], axis=1)

    zeros = sample_zeros(known, 3, exclude=test, candidates=pages, seed=5)
    assert {*cells(zeros)} == {(0, 2), (1, 4), (1, 5)}
    assert zeros == sample_zeros(known, 3, exclude=test, candidates=pages, seed=5)
    with pytest.raises(DataError, match=r"must propose 4 distinct cells.*Got 3, and 1000 batches without another"):
        sample_zeros(known, 4, exclude=test, candidates=pages)
    ordered = sample_zeros(known, 2, candidates=lambda _: [torch.tensor([[1, 5], [0, 0], [1, 5], [0, 4], [0, 5]])])
    assert cells(ordered) == [(1, 5), (0, 4)]
    with pytest.raises(DataError, match=r"must propose 2 distinct cells.*Got 1\."):
        sample_zeros(known, 2, candidates=lambda _: [[[0, 4]], [], [[0, 4]]])
    with pytest.raises(DataError, match=r"must lie in \[0, 6\). Got 6 at row 0"):
        sample_zeros(known, 2, candidates=lambda _: [[[0, 6]]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Either count or ratio"),
        ({"count": 1, "ratio": 1.0}, "Either count or ratio"),
        ({"count": -1}, "count must be an integer of at least 0. Got -1"),
        ({"count": 1.5}, "count must be an integer"),
        ({"ratio": -1.0}, "ratio must be a number of at least 0"),
        ({"ratio": math.nan}, "ratio must be a number of at least 0"),
        ({"count": 1, "seed": -1}, "seed must be an integer of at least 0"),
        ({"count": 1, "exclude": random_entries((5, 6), 2)}, "entries of the same tensor"),
    ],
)
def test_options_that_make_no_sense(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sample_zeros(random_entries((5, 5), 6), **options)
