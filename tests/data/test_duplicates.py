"""Several entries of one cell: an error with the count and the first rows, or what the caller says."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gptf_gpytorch import DataError, InputError, TensorEntries, Vocabulary
from gptf_gpytorch.data import resolve
from gptf_gpytorch.data.cells import repeat

CELLS = [[0, 1], [1, 0], [0, 1], [1, 1], [0, 1], [1, 0]]


def entries(**options: object) -> TensorEntries:
    vocabularies = (Vocabulary(["ann", "bob"]), Vocabulary([10, 20]))
    names = ("user", "ad")
    return TensorEntries(CELLS, [1.0, 2.0, 3.0, 4.0, 8.0, 6.0], (2, 2), names, vocabularies, **options)


def test_the_default_is_an_error_with_count_and_first_rows_in_the_users_ids() -> None:
    with pytest.raises(DataError) as caught:
        resolve(entries())
    assert "Got 3 more entries than cells" in str(caught.value)
    assert "(user='ann', ad=20) at row 0 and row 2; (user='ann', ad=20) at row 0 and row 4" in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "values"), [("mean", [4.0, 4.0, 4.0]), ("sum", [12.0, 8.0, 4.0]), ("last", [8.0, 6.0, 4.0])]
)
def test_policies(policy: str, values: list[float]) -> None:
    found = resolve(entries(), policy)
    assert found.ids() == [("ann", 20), ("bob", 10), ("bob", 20)]  # where each cell first appeared
    assert found.values.tolist() == values


def test_keep_keeps_everything() -> None:
    assert resolve(entries(), "keep") == entries()


def test_weights_and_times() -> None:
    weighted = entries(weights=[1.0, 0.0, 2.0, 1.0, 1.0, 0.0], times=[5, 1, 7, 3, 6, 2])
    mean = resolve(weighted, "mean")
    assert mean.values.tolist() == [(1 + 6 + 8) / 4, 4.0, 4.0]  # plain where all weights are 0
    assert mean.weights.tolist() == [4.0, 0.0, 1.0]
    assert mean.times.tolist() == [7, 2, 3]
    last = resolve(weighted, "last")
    assert last.weights.tolist() == [1.0, 0.0, 1.0]
    assert last.times.tolist() == [6, 2, 3]
    with pytest.raises(InputError, match="'sum' must have entries without weights"):
        resolve(weighted, "sum")


def test_unknown_policy() -> None:
    with pytest.raises(InputError, match=r"one of error, mean, sum, last, keep. Got 'first'"):
        resolve(entries(), "first")


def test_unknown_entities_are_not_one_entity() -> None:
    unknown = TensorEntries([[-1, 0], [0, 0], [-1, 0]], [1.0, 2.0, 3.0], (2, 2), unseen="prior")
    assert resolve(unknown) == unknown


def test_unknown_entities_stay_in_their_places() -> None:
    rows = [[0, 0], [-1, 0], [1, 0], [0, 0], [0, -1]]
    unknown = TensorEntries(rows, [1.0, 2.0, 3.0, 4.0, 5.0], (2, 2), unseen="prior")
    assert resolve(unknown, "sum").indices.tolist() == [[0, 0], [-1, 0], [1, 0], [0, -1]]
    assert resolve(unknown, "sum").values.tolist() == [5.0, 2.0, 3.0, 5.0]
    with pytest.raises(DataError, match=r"\(mode_0=0, mode_1=0\) at row 0 and row 3"):
        resolve(unknown)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(-5, 5))), st.booleans())
def test_policies_agree_with_a_dictionary(rows: list[tuple[int, int, int]], huge: bool) -> None:
    """Also where a cell's position does not fit into 64 bits."""
    shape = (2**40, 2**40) if huge else (4, 3)
    indices = np.array([row[:2] for row in rows], dtype=np.int64).reshape(-1, 2)
    found = TensorEntries(indices, [float(row[2]) for row in rows], shape)
    groups: dict[tuple[int, int], list[int]] = {}
    for *cell, value in rows:
        groups.setdefault(tuple(cell), []).append(value)
    for policy, merge in {"mean": np.mean, "sum": sum, "last": lambda values: values[-1]}.items():
        merged = resolve(found, policy)
        assert [tuple(cell) for cell in merged.indices.tolist()] == list(groups)
        expected = torch.tensor([float(merge(values)) for values in groups.values()], dtype=torch.float64)
        torch.testing.assert_close(merged.values, expected)
    if len(groups) == len(rows):
        assert resolve(found) is found
    else:
        with pytest.raises(DataError, match=f"Got {len(rows) - len(groups)} more entries than cells"):
            resolve(found)


def test_two_equal_keys_are_found_among_many() -> None:
    rng = np.random.default_rng(0)
    for count in (2**16, 100_000, 1_200_000):  # one core, and several
        keys = rng.permutation(rng.choice(2**40, count + count // 2, replace=False)[:count].astype(np.int64))
        assert not repeat(keys)
        for _ in range(5):
            first, second = rng.choice(count, 2, replace=False)
            again = keys.copy()
            again[second] = again[first]
            assert repeat(again)


def test_equal_keys_are_found_where_all_share_a_slot() -> None:
    """Keys whose hash has its bits where the table does not look."""
    odd = 0x9E3779B97F4A7C15
    inverse = pow(odd, -1, 2**64)
    keys = (np.arange(70_000, dtype=np.uint64) * np.uint64(inverse)).view(np.int64)
    keys = keys ^ (keys >> 32)
    assert not repeat(keys)
    keys[69_999] = keys[3]
    assert repeat(keys)
