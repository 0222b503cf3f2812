"""Packed strings: exact, sorted by code point, and right where hashes collide."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptf_gpytorch.data.readers import packing

LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
SHORT = st.text(LETTERS, max_size=16).filter(lambda text: len(text.encode()) <= 16)


def check(blocks: list[list[str]]) -> None:
    packer = packing.Packer()
    for block in blocks:
        # A slice, so that the offsets do not start at 0.
        packer.add(pa.array(["before", *block, "after"], pa.string())[1:-1])
    codes, ids = packer.finish()
    texts = [text for block in blocks for text in block]
    assert len(ids) == len(set(texts))
    assert ids.take(pa.array(packing.order(ids))).to_pylist() == sorted(set(texts))
    assert [ids[code].as_py() for code in np.concatenate(codes)] == texts


@given(st.lists(st.lists(SHORT, min_size=1), min_size=1))
def test_every_short_string_comes_back(blocks: list[list[str]]) -> None:
    check(blocks)


@given(st.lists(st.lists(SHORT, min_size=1), min_size=1))
def test_collisions_and_merges_change_nothing(blocks: list[list[str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_hash", lambda words: words[0] << np.uint64(62))
        patch.setattr(packing, "ROWS", 3)
        patch.setattr(packing, "ROOM", 4)
        check(blocks)


def test_a_table_that_has_grown_many_times_knows_all_of_its_words() -> None:
    numbers = np.random.default_rng(0).permutation(np.repeat(np.arange(300_000), 2))
    texts = [f"{number:x}" for number in numbers.tolist()]
    packer = packing.Packer()
    for start in range(0, len(texts), 50_000):
        packer.add(pa.array(texts[start : start + 50_000]))
    codes, ids = packer.finish()
    assert len(ids) == 300_000
    assert ids.take(pa.array(np.concatenate(codes))).to_pylist() == texts


def test_what_does_not_fit_is_not_packed() -> None:
    assert packing.packs(pa.array(["1234567890123456"]))
    assert packing.packs(pa.array(["\0", "a", ""])[1:])
    assert not packing.packs(pa.array(["12345678901234567"]))
    assert not packing.packs(pa.array(["é" * 9]))
    assert not packing.packs(pa.array(["a\0"]))
    assert not packing.packs(pa.array([1]))
