"""Distinct short strings by sorting: several times faster than a hash table that does not fit into a cache.

A string of at most 15 bytes is two 64-bit words, exactly: its bytes, the most significant first, then zeros, and its
length in the last byte. So words compare as the strings do.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array = np.ndarray[Any, Any]
LONGEST = 15
ROWS = 2**21  # that are sorted together: arrays of them are small enough to be used again
_ALL = 2**64 - 1
_FIRST = np.array([_ALL ^ (_ALL >> 8 * min(n, 8)) for n in range(LONGEST + 1)], dtype=np.uint64)
_SECOND = np.array([_ALL ^ (_ALL >> 8 * max(n - 8, 0)) for n in range(LONGEST + 1)], dtype=np.uint64)


def packs(block: pa.Array) -> bool:
    """Whether a block of strings can be packed."""
    return pa.types.is_string(block.type) and (pc.max(pc.binary_length(block)).as_py() or 0) <= LONGEST


def pack(block: pa.Array) -> tuple[Array, Array]:
    """The two words of each string."""
    _, offsets, data = block.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[block.offset : block.offset + len(block) + 1].astype(np.intp)
    low, high = int(ends[0]), int(ends[-1])
    text = np.zeros(high - low + 2 * 8, dtype=np.uint8)  # so that a word may start at the last byte
    if data is not None:
        text[: high - low] = np.frombuffer(data, dtype=np.uint8)[low:high]
    lengths = np.diff(ends)
    starts = ends[:-1] - low
    # Every eight bytes of the text, wherever they start, without a copy.
    words = np.lib.stride_tricks.as_strided(text[:8].view("<u8"), shape=(high - low + 9,), strides=(1,))
    first = words[starts].byteswap(inplace=True)
    first &= _FIRST[lengths]
    starts += np.minimum(lengths, 8)
    second = words[starts].byteswap(inplace=True)
    second &= _SECOND[lengths]
    second |= lengths.astype(np.uint64)
    return first, second


def unpack(first: Array, second: Array) -> pa.Array:
    """The strings of words."""
    table = np.stack([first, second], axis=1).byteswap().view(np.uint8).reshape(-1, 16)
    lengths = table[:, LONGEST].astype(np.int64)
    text = table[np.arange(16) < lengths[:, None]]
    offsets = np.zeros(len(first) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pa.LargeStringArray.from_buffers(len(first), pa.py_buffer(offsets), pa.py_buffer(text))


class Packer:
    """Strings that arrive block by block -> codes into the distinct ones."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Array, Array]] = []
        self.rows = 0
        self.codes: list[list[Array]] = []  # of each group that was sorted together
        self.words: list[tuple[Array, Array]] = []  # the distinct ones of each group

    def add(self, block: pa.Array) -> None:
        """Take the next block."""
        self.waiting.append(pack(block))
        self.rows += len(block)
        if self.rows >= ROWS:
            self._sort()

    def _sort(self) -> None:
        if not self.waiting:
            return
        first, second = _join(self.waiting)
        self.waiting, self.rows = [], 0
        codes, members = _group(first, second)
        self.codes.append([codes])
        self.words.append((first[members], second[members]))
        if sum(len(words[0]) for words in self.words[1:]) > max(2**23, 2 * len(self.words[0][0])):
            self._merge()

    def _merge(self) -> None:
        """One group of all, which is worth it when most of the distinct strings were not merged yet."""
        if len(self.words) == 1:
            return
        first, second = _join(self.words)
        moved, members = _group(first, second)
        start, merged = 0, []
        for codes, words in zip(self.codes, self.words, strict=True):
            table = moved[start : start + len(words[0])]
            start += len(words[0])
            while codes:
                merged.append(table[codes.pop(0)])
        self.codes, self.words = [merged], [(first[members], second[members])]

    def finish(self) -> tuple[list[Array], pa.Array]:
        """Codes, in the order of the blocks, into the distinct strings, which are sorted."""
        self._sort()
        self._merge()
        first, second = self.words[0]
        order = np.lexsort((second, first))
        rank = np.empty(len(order), dtype=np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        codes, self.codes = self.codes[0], []
        for place, part in enumerate(codes):
            codes[place] = rank[part]
        return codes, unpack(first[order], second[order])


def _join(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    return np.concatenate([first for first, _ in parts]), np.concatenate([second for _, second in parts])


def _group(first: Array, second: Array) -> tuple[Array, Array]:
    """Codes of equal pairs of words, and the row of one pair for each code.

    The high bits of a hash above the bits of the row are one number; sorting those brings equal pairs together. Every
    row is then compared with its group. The few that only have the hash of another pair are grouped among themselves.
    """
    count = len(first)
    bits = count.bit_length()
    keys = _hash(first, second)
    keys >>= np.uint64(bits)
    keys <<= np.uint64(bits)
    keys |= np.arange(count, dtype=np.uint64)
    keys.sort()
    rows = (keys & np.uint64((1 << bits) - 1)).astype(np.intp)
    keys >>= np.uint64(bits)
    new = np.empty(count, dtype=bool)
    new[0] = True
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    del keys
    codes = np.empty(count, dtype=np.int32)
    codes[rows] = np.cumsum(new, dtype=np.int32) - np.int32(1)
    members = rows[new]
    del rows, new
    odd = first[members][codes] != first
    odd |= second[members][codes] != second
    if odd.any():
        strangers = np.flatnonzero(odd)
        again, found = _group(first[strangers], second[strangers])
        codes[strangers] = again + np.int32(len(members))
        members = np.concatenate([members, strangers[found]])
    return codes, members


def _hash(first: Array, second: Array) -> Array:
    """64 mixed bits; only speed depends on how well."""
    keys = first * np.uint64(0x9E3779B97F4A7C15)
    keys ^= keys >> np.uint64(32)
    keys += second
    keys *= np.uint64(0xBF58476D1CE4E5B9)
    keys ^= keys >> np.uint64(29)
    keys *= np.uint64(0x94D049BB133111EB)
    return keys
