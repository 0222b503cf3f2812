"""Entries: validated once, not changed behind anyone's back, cut and joined without loss, saved whole."""

import math
import tempfile
from dataclasses import FrozenInstanceError
from pathlib import Path

import gpytorch
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gptf_gpytorch import GPTF, CollapsedELBO, DataError, InputError, TensorEntries, Vocabulary, read
from gptf_gpytorch.data import storage


@st.composite
def some(draw: st.DrawFn) -> TensorEntries:
    """Entries with or without vocabularies, weights and times."""
    shape = draw(st.lists(st.integers(1, 50), min_size=1, max_size=4))
    n = draw(st.integers(0, 30))
    indices = np.array([[draw(st.integers(0, d - 1)) for d in shape] for _ in range(n)], dtype=np.int64).reshape(
        n, len(shape)
    )
    finite = st.floats(allow_nan=False, allow_infinity=False)
    column = st.lists(finite, min_size=n, max_size=n)
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    named = draw(st.booleans())
    vocabularies = [
        Vocabulary(draw(st.lists(text, min_size=d, max_size=d, unique=True))) if named and d < 8 else None
        for d in shape
    ]
    weights = draw(st.none() | st.lists(st.floats(0, 10), min_size=n, max_size=n))
    times = draw(st.none() | st.lists(st.integers(-(2**62), 2**62), min_size=n, max_size=n))
    return TensorEntries(
        indices,
        np.array(draw(column), dtype=np.float64),
        shape,
        vocabularies=vocabularies,
        weights=None if weights is None else np.array(weights, dtype=np.float64),
        times=None if times is None else np.array(times, dtype=np.int64),
    )


@given(some(), st.integers(1, 7))
def test_shards_and_chunks_hold_every_entry_once_in_order(entries: TensorEntries, size: int) -> None:
    shards = [entries.shard(rank, size) for rank in range(size)]
    assert TensorEntries.concat(shards) == entries
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    chunks = list(entries.chunks(size))
    assert all(len(chunk) == size for chunk in chunks[:-1])
    if len(entries):
        assert TensorEntries.concat(chunks) == entries


@settings(max_examples=40)
@given(some(), st.booleans())
def test_saved_entries_are_the_same(entries: TensorEntries, mmap: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "deep" / "saved"
        entries.save(target)
        assert TensorEntries.load(target, mmap=mmap) == entries
        assert read(target) == entries
        assert [path.name for path in target.parent.iterdir()] == ["saved"]


@given(some(), st.data())
def test_taking_by_position_mask_and_slice_agree(entries: TensorEntries, data: st.DataObject) -> None:
    n = len(entries)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=bool)
    assert entries[mask] == entries[np.flatnonzero(mask)] == entries[torch.from_numpy(mask)]
    start, stop, step = (
        data.draw(st.integers(0, 30)),
        data.draw(st.integers(0, 30)),
        data.draw(st.sampled_from([-2, 1, 3])),
    )
    assert entries[start:stop:step] == entries[list(range(n))[start:stop:step]]


def small() -> TensorEntries:
    return TensorEntries([[0, 1], [2, 0], [1, 1]], [1.0, 0.0, 1.0], (3, 2), names=("user", "ad"))


def test_what_came_in_can_change_without_changing_entries() -> None:
    indices, values = np.array([[0, 1]], dtype=np.int32), torch.tensor([1.0], dtype=torch.float64)
    entries = TensorEntries(indices, values, (1, 2))
    indices[:], values[:] = 0, 7
    assert entries.indices.tolist() == [[0, 1]]
    assert entries.values.tolist() == [1.0]
    with pytest.raises(FrozenInstanceError):
        entries.values = values


def test_slices_are_views() -> None:
    entries = small()
    assert entries[1:].indices.data_ptr() == entries.indices[1].data_ptr()
    assert entries.shard(1, 2).values.untyped_storage().data_ptr() == entries.values.untyped_storage().data_ptr()


@pytest.mark.parametrize(("size", "dtype"), [(2**31, torch.int32), (2**31 + 1, torch.int64)])
def test_indices_are_compact(size: int, dtype: torch.dtype) -> None:
    entries = TensorEntries([[size - 1, 0]], [1.0], (size, 2))
    assert entries.indices.dtype == dtype
    assert entries.indices.tolist() == [[size - 1, 0]]


def test_values_are_double_unless_single_came() -> None:
    assert TensorEntries([[0]], [1], (1,)).values.dtype == torch.float64
    assert TensorEntries([[0]], np.array([1], dtype=np.float32), (1,)).values.dtype == torch.float32


def test_the_model_takes_compact_indices() -> None:
    torch.manual_seed(0)
    entries = small()
    model = GPTF(entries.shape, rank=1, num_inducing=2)
    mll = CollapsedELBO(gpytorch.likelihoods.GaussianLikelihood(), model, num_data=3)
    bounds = [mll(model(indices), entries.values) for indices in (entries.indices, entries.indices.long())]
    assert entries.indices.dtype == torch.int32
    assert torch.equal(*bounds)
    bounds[0].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": [[0, 2]], "values": [1.0]}, r"mode 'ad' must lie in \[0, 2\). Got 2 at row 0"),
        ({"indices": [[-1, 0]], "values": [1.0]}, r"mode 'user' must lie in \[0, 3\). Got -1 at row 0"),
        ({"indices": [[0.0, 1.0]], "values": [1.0]}, "indices must be integers. Got float64"),
        ({"indices": [[0]], "values": [1.0]}, r"\[N, 2\], a column a mode. Got \[1, 1\]"),
        ({"values": [1.0]}, r"one for each of 3 entries. Got \[1\]"),
        ({"values": [1.0, math.nan, 1.0]}, "finite. Got nan at row 1"),
        ({"values": ["a", "b", "c"]}, "Values must be numbers"),
        ({"weights": [1.0, -1.0, 1.0]}, "finite and at least 0. Got -1.0 at row 1"),
        ({"times": [1.0, math.inf, 1.0]}, "Times must be finite. Got inf at row 1"),
        ({"shape": (3, 0)}, "at least 1. Got"),
        ({"shape": 3}, "at least 1. Got 3"),
        ({"names": ("a", "a")}, "2 distinct strings"),
        ({"names": ("a",)}, "2 distinct strings"),
        ({"vocabularies": (Vocabulary(["x"]), None)}, "'user' must have 3 ids, as shape says. Got 1"),
        ({"vocabularies": (None,)}, "one vocabulary"),
        ({"unseen": "no"}, "unseen must be one of"),
    ],
)
def test_what_entries_must_be(change: dict, message: str) -> None:
    good = {"indices": [[0, 1], [2, 0], [1, 1]], "values": [1.0, 0.0, 1.0], "shape": (3, 2), "names": ("user", "ad")}
    TensorEntries(**good)
    with pytest.raises(InputError, match=message):
        TensorEntries(**{**good, **change})


def test_an_unknown_entity_is_marked() -> None:
    entries = TensorEntries(
        [[0, -1], [1, 1]], [0.0, 0.0], (2, 2), unseen="prior", vocabularies=(None, Vocabulary(["a", "b"]))
    )
    assert entries.known.tolist() == [False, True]
    assert entries.ids() == [(0, None), (1, "b")]


@pytest.mark.parametrize("rows", [3, [7], torch.tensor([0.5]), [True], torch.zeros(1, 1, dtype=torch.long)])
def test_positions_must_be_there(rows: object) -> None:
    with pytest.raises(InputError):
        small()[rows]


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_shard_must_be_one_of_them(rank: int, size: int) -> None:
    with pytest.raises(InputError, match="0 <= rank < size"):
        small().shard(rank, size)


def test_parts_of_different_tensors_are_not_joined() -> None:
    other = TensorEntries([[0, 1]], [1.0], (3, 2))
    with pytest.raises(InputError, match="same names"):
        TensorEntries.concat([small(), other])
    with pytest.raises(InputError, match="have weights"):
        TensorEntries.concat([other, TensorEntries([[0, 1]], [1.0], (3, 2), weights=[1.0])])


def test_repr_tells_what_matters() -> None:
    assert repr(small()) == "TensorEntries(3 entries of 3 x 2 = 6 cells (50%), 2 ones and 1 zeros, modes user, ad)"
    real = TensorEntries([[0]], [2.5], (1000,), weights=[1.0], times=[3])
    assert (
        repr(real)
        == "TensorEntries(1 entries of 1,000 = 1,000 cells (0.1%), values 2.5 to 2.5, modes mode_0, weights, times)"
    )
    assert "0 entries" in repr(small()[:0])


def test_a_folder_is_never_overwritten_or_left_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small().save(tmp_path / "saved")
    with pytest.raises(DataError, match="must not exist yet"):
        small().save(tmp_path / "saved")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="No space"):
        small().save(tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    small().save(folder)
    values = folder / "values.npy"
    content = bytearray(values.read_bytes())
    content[-3] ^= 1
    values.write_bytes(content)
    with pytest.raises(DataError, match=r"values\.npy must be what was saved. Got another SHA-256"):
        TensorEntries.load(folder)
    assert len(TensorEntries.load(folder, verify=False)) == 3
    values.write_bytes(content[:-8])
    with pytest.raises(DataError, match=r"values\.npy must be a \.npy file that was saved whole"):
        TensorEntries.load(folder, verify=False)
    values.unlink()
    with pytest.raises(DataError, match=r"Got no values\.npy"):
        TensorEntries.load(folder, verify=False)


@pytest.mark.parametrize("content", ["", "{}", '{"format": "other", "version": 1, "sha256": {}}', "[1]"])
def test_a_manifest_must_be_one(tmp_path: Path, content: str) -> None:
    (tmp_path / "entries.json").write_text(content)
    with pytest.raises(DataError, match=r"entries\.json must be"):
        TensorEntries.load(tmp_path)
    with pytest.raises(DataError, match=r"must hold entries\.json"):
        TensorEntries.load(tmp_path / "nowhere")


def test_a_pickle_in_the_place_of_an_array_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="saved whole"):
        storage.load_array(path, mmap=False)


def test_loading_maps_and_does_not_write_through(tmp_path: Path) -> None:
    small().save(tmp_path / "saved")
    loaded = TensorEntries.load(tmp_path / "saved")
    loaded.values[0] = 9.0
    assert TensorEntries.load(tmp_path / "saved") == small()
