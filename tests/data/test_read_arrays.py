"""Arrays: sparse ones from their own libraries, dense ones with gaps, and pairs."""

import warnings

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gptf_gpytorch import DataError, InputError, read

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of numba, which it compiles with
    import sparse

INDICES = np.array([[0, 1, 2], [3, 0, 1], [1, 1, 1]])
VALUES = np.array([1.5, -2.0, 0.0])
SHAPE = (4, 2, 5)
SOURCES = {
    "scipy coo_array": lambda: scipy.sparse.coo_array((VALUES, tuple(INDICES.T)), shape=SHAPE),
    "sparse.COO": lambda: sparse.COO(INDICES.T, VALUES, shape=SHAPE, prune=False, sorted=False),
    "torch.sparse_coo": lambda: torch.sparse_coo_tensor(
        torch.from_numpy(INDICES.T), torch.from_numpy(VALUES), SHAPE, check_invariants=True
    ),
    "pair": lambda: (INDICES, VALUES),
    "pair of tensors": lambda: (torch.from_numpy(INDICES), torch.from_numpy(VALUES)),
    "pair of lists": lambda: [INDICES.tolist(), VALUES.tolist()],
}


@pytest.mark.parametrize("kind", SOURCES)
def test_sparse_arrays_and_pairs(kind: str) -> None:
    entries = read(SOURCES[kind](), shape=SHAPE, modes=["a", "b", "c"])
    order = np.lexsort(entries.indices.numpy().T[::-1])
    expected = np.lexsort(INDICES.T[::-1])
    assert np.array_equal(entries.indices.numpy()[order], INDICES[expected])
    assert np.array_equal(entries.values.numpy()[order], VALUES[expected])
    assert entries.shape == SHAPE
    assert entries.names == ("a", "b", "c")
    assert entries.vocabularies == (None, None, None)


@pytest.mark.parametrize("kind", ["scipy coo_array", "sparse.COO", "torch.sparse_coo"])
def test_the_shape_is_the_arrays(kind: str) -> None:
    assert read(SOURCES[kind]()).shape == SHAPE


def test_other_sparse_layouts() -> None:
    dense = np.array([[0.0, 2.0], [3.0, 0.0]])
    for source in (scipy.sparse.csr_array(dense), scipy.sparse.csc_matrix(dense), sparse.GCXS.from_numpy(dense)):
        entries = read(source)
        assert sorted(zip(entries.indices.tolist(), entries.values.tolist(), strict=True)) == [
            ([0, 1], 2.0),
            ([1, 0], 3.0),
        ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its csr layout a beta
        layout = torch.from_numpy(dense).to_sparse_csr()
    assert len(read(layout)) == 2


def test_duplicates_are_not_added_up_before_anyone_was_asked() -> None:
    tensor = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2), check_invariants=True)
    with pytest.raises(DataError, match="Got 1 more entries than cells"):
        read(tensor)
    assert read(tensor, duplicates="sum").values.tolist() == [3.0]
    twice = scipy.sparse.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(2, 2))
    with pytest.raises(DataError, match="Got 1 more entries than cells"):
        read(twice)


@given(
    hnp.arrays(
        np.float64, hnp.array_shapes(min_dims=1, max_dims=3, min_side=2), elements=st.sampled_from([np.nan, 0.0, 2.5])
    )
)
def test_dense_arrays_with_gaps(array: np.ndarray) -> None:
    if np.isnan(array).all():
        with pytest.raises(DataError, match=r"at least one entry. Got none in the dense array"):
            read(array)
        return
    for source in (array, torch.from_numpy(array), np.ma.masked_invalid(array)):
        entries = read(source)
        again = np.full(array.shape, np.nan)
        again[tuple(entries.indices.numpy().T)] = entries.values.numpy()
        assert np.array_equal(again, array, equal_nan=True)
        assert entries.shape == array.shape


def test_dense_integers_are_all_there() -> None:
    assert len(read(np.arange(6).reshape(2, 3))) == 6


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (np.array([[1.0, np.inf], [0.0, 0.0]]), {}, r"finite numbers. Got inf at \(0, 1\), row 1 of the dense array"),
        (np.array([["a"]]), {}, "hold numbers. Got <U1"),
        ((INDICES, VALUES), {"shape": (4, 2, 2)}, r"Indices must lie in \[0, 2\). Got 2 in column 'mode_2' at row 0"),
        ((INDICES, VALUES), {"index_base": 1}, r"Indices must lie in \[1, 4\). Got 0 in column 'mode_0' at row 0"),
        ((-INDICES, VALUES), {"shape": SHAPE}, r"Got -3 in column 'mode_0' at row 1"),
        ((INDICES, VALUES), {"binary": True}, r"Labels must be 0 or 1. Got 1.5 at \(0, 1, 2\), row 0"),
        ((INDICES.astype(float), VALUES), {}, "Indices must be integers. Got float64"),
        ((INDICES, VALUES[:2]), {}, r"indices \[N, K\] and values \[N\]. Got \[3, 3\] and \[2\]"),
        ((INDICES, VALUES + 1j), {}, "Values must be numbers. Got complex128"),
        ((INDICES[:0], VALUES[:0]), {}, "at least one entry"),
        (([[1, 2], [3]], [1, 2]), {}, r"A pair must be indices"),
    ],
)
def test_bad_arrays(source: object, options: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(source, **options)


def test_arrays_that_cannot_be_entries() -> None:
    with pytest.raises(DataError, match=r"must be 0 or NaN, which stand for unknown. Got 1.0 in the sparse COO"):
        read(sparse.COO(INDICES.T, VALUES, shape=SHAPE, fill_value=1.0))
    with pytest.raises(DataError, match="no dense dimensions"):
        read(torch.sparse_coo_tensor([[0, 1]], [[1.0, 2.0], [3.0, 4.0]], (2, 2), check_invariants=True))
    with pytest.raises(InputError, match="modes and shape must be of the 3 modes"):
        read((INDICES, VALUES), modes=["a"])
    with pytest.raises(InputError, match="weight= names a column"):
        read((INDICES, VALUES), weight="w")


def test_one_based_pairs() -> None:
    assert read((INDICES + 1, VALUES), index_base=1).indices.tolist() == INDICES.tolist()
