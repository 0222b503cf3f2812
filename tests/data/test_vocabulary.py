"""Ids and rows: exact both ways, for any Unicode text and any 64-bit integer."""

import time
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gptf_gpytorch import DataError, InputError, Vocabulary

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
IDS = st.lists(TEXT, unique=True) | st.lists(INTEGERS, unique=True)


@given(IDS)
def test_ids_come_back_exactly(ids: list) -> None:
    vocabulary = Vocabulary(ids)
    assert list(vocabulary) == ids
    assert vocabulary.encode(ids).tolist() == list(range(len(ids)))
    assert vocabulary.decode(torch.arange(len(ids))) == ids
    assert all(item in vocabulary for item in ids)


@given(IDS)
def test_a_saved_vocabulary_is_the_same(ids: list) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "users.arrow"
        Vocabulary(ids).save(path)
        again = Vocabulary.load(path)
        assert list(again) == ids
        assert again == Vocabulary(ids)
        assert [file.name for file in path.parent.iterdir()] == [path.name]


@given(st.lists(TEXT), st.lists(TEXT))
def test_sorted_does_not_depend_on_the_order(first: list[str], second: list[str]) -> None:
    merged = Vocabulary.sorted(first, second)
    assert list(merged) == sorted({*first, *second})  # Python compares strings by code point
    assert merged == Vocabulary.sorted(second[::-1], first)


def test_integers_are_sorted_by_value() -> None:
    assert list(Vocabulary.sorted([10, 9, -1], [10])) == [-1, 9, 10]


def test_spellings_that_look_alike_are_two_ids() -> None:
    composed, decomposed = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    vocabulary = Vocabulary([composed, decomposed, "1", "01"])
    assert vocabulary.encode([decomposed, "01"]).tolist() == [1, 3]


def test_an_unseen_id_is_an_error_or_the_prior() -> None:
    vocabulary = Vocabulary(["ann", "bob"])
    with pytest.raises(DataError, match=r"among the 2 of the vocabulary.*Got 'eve' at position 1; 1 ids are not known"):
        vocabulary.encode(["ann", "eve"])
    assert vocabulary.encode(["ann", "eve"], unseen="prior").tolist() == [0, -1]
    with pytest.raises(InputError, match=r"unseen must be one of error, prior. Got 'ignore'"):
        vocabulary.encode(["ann"], unseen="ignore")
    assert "eve" not in vocabulary
    assert 1 not in vocabulary


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b", "a"], "distinct. Got 'a' 2 times"),
        ([1.5], "strings or integers. Got 1.5"),
        ([True], "strings or integers. Got True"),
        (["a", None], "strings or integers. Got None"),
        (["a", 1], "all strings, or all integers"),
        ([2**63], "64 bits"),
        (["\ud800"], "lone surrogate"),
        ("abc", "a list of strings or integers. Got 'abc'"),
        (np.array([1.0]), "strings or integers. Got double"),
        (pa.array(["a", None]), "not be missing. Got null at position 1"),
        (pa.array([2**63], pa.uint64()), "within 64 bits"),
    ],
)
def test_what_ids_must_be(ids: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Vocabulary(ids)


def test_kinds_do_not_mix() -> None:
    with pytest.raises(DataError, match=r"Ids must be strings, as the vocabulary's are. Got integers, 1 first"):
        Vocabulary(["1"]).encode([1])
    with pytest.raises(DataError, match="all strings or all integers"):
        Vocabulary.sorted(["1"], [1])


@pytest.mark.parametrize("rows", [[-1], [2], [0, 5]])
def test_rows_must_be_there(rows: list[int]) -> None:
    with pytest.raises(InputError, match=r"Rows must lie in \[0, 2\)"):
        Vocabulary(["a", "b"]).decode(rows)


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "users.arrow"
    Vocabulary(["a", "b"]).save(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"users\.arrow must be a vocabulary that was saved whole"):
        Vocabulary.load(path)


def test_a_million_ids_take_about_a_second() -> None:
    ids = pa.array(np.random.default_rng(0).permutation(10**6)).cast(pa.string())
    started = time.process_time()
    vocabulary = Vocabulary(ids)
    rows = vocabulary.encode(ids)
    assert time.process_time() - started < 5  # about 1 on an idle machine
    assert torch.equal(rows, torch.arange(10**6))


def test_repr_is_short() -> None:
    assert repr(Vocabulary(["a", "b", "c", "d"])) == "Vocabulary(['a', 'b', 'c', ...], 4 string ids)"
