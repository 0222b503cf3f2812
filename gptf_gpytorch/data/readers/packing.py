"""Distinct short strings by sorting: several times faster than a hash table that does not fit into a cache.

A string of at most 16 bytes, none of them NUL, is one or two 64-bit words, exactly: its bytes, the most significant
first, then zeros. So words compare as the strings do.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gptf_gpytorch.distributed import threads

Array = np.ndarray[Any, Any]
Words = list[Array]
"""The first eight bytes of each string, and where some are longer, the next eight."""

LONGEST = 16
ROWS = 2**24  # that are sorted together, 128 MB of words: merging groups takes longer than a larger group
_ALL = 2**64 - 1
_MASKS = [
    np.array([_ALL ^ (_ALL >> 8 * min(max(n - at, 0), 8)) for n in range(LONGEST + 1)], np.uint64) for at in (0, 8)
]
_ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


def packs(block: pa.Array) -> bool:
    """Whether a block of strings can be packed."""
    if not pa.types.is_string(block.type) or (pc.max(pc.binary_length(block)).as_py() or 0) > LONGEST:
        return False
    _, low, high, data = _text(block)
    return not (data[low:high] == 0).any()


def _text(block: pa.Array) -> tuple[Array, int, int, Array]:
    """The ends of the strings in the text, the part of the text that is theirs, and the text."""
    _, offsets, data = block.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[block.offset : block.offset + len(block) + 1]
    return ends, int(ends[0]), int(ends[-1]), np.frombuffer(b"" if data is None else data, dtype=np.uint8)


def pack(block: pa.Array) -> Words:
    """The words of each string."""
    ends, low, high, data = _text(block)
    text = np.zeros(high - low + 16, dtype=np.uint8)  # so that a word may start at the end
    text[: high - low] = data[low:high]
    lengths = np.diff(ends)
    if len(lengths) and lengths.min() == lengths.max() > 0:
        return _pack_equal(text, len(lengths), int(lengths[0]))
    starts = ends[:-1].astype(np.intp)
    starts -= low
    # Every eight bytes of the text, wherever they start, without a copy.
    sliding = np.lib.stride_tricks.as_strided(text[:8].view("<u8"), shape=(high - low + 9,), strides=(1,))
    words = []
    for masks in _MASKS[: 1 if lengths.max() <= 8 else 2]:
        word = sliding[starts].byteswap(inplace=True)
        word &= masks[lengths]
        words.append(word)
        starts += np.minimum(lengths, 8)
    return words


def _pack_equal(text: Array, count: int, length: int) -> Words:
    """The words of strings of one length, as hashes have: they need not be looked for."""
    words = []
    for at, masks in zip(range(0, length, 8), _MASKS, strict=False):
        word = np.lib.stride_tricks.as_strided(text[at : at + 8].view("<u8"), shape=(count,), strides=(length,))
        words.append(word.byteswap() & masks[length])
    return words


def unpack(words: Words) -> pa.Array:
    """The strings of words."""
    table = np.stack(words, axis=1).byteswap().view(np.uint8).reshape(len(words[0]), -1)
    there = table != 0
    offsets = np.zeros(len(table) + 1, dtype=np.int64)
    np.cumsum(there.sum(axis=1), out=offsets[1:])
    return pa.LargeStringArray.from_buffers(len(table), pa.py_buffer(offsets), pa.py_buffer(table[there]))


class Packer:
    """Strings that arrive block by block -> codes into the distinct ones."""

    def __init__(self) -> None:
        self.waiting: list[Words] = []
        self.rows = 0
        self.codes: list[list[Array]] = []  # of each group that was sorted together
        self.words: list[Words] = []  # the distinct ones of each group

    def add(self, block: pa.Array) -> None:
        """Take the next block."""
        self.waiting.append(pack(block))
        self.rows += len(block)
        if self.rows >= ROWS:
            self._sort()

    def _sort(self) -> None:
        if not self.waiting:
            return
        words = _join(self.waiting)
        self.waiting, self.rows = [], 0
        if len(words) == 1:
            found = _distinct(words[0])
            codes, words = _places(found, words[0]), [found]
        else:
            codes, members = _group(words)
            words = [word[members] for word in words]
        self.codes.append([codes.astype(np.int32, copy=False)])
        self.words.append(words)
        if sum(len(words[0]) for words in self.words[1:]) > max(2**23, 2 * len(self.words[0][0])):
            self._merge()

    def _merge(self) -> None:
        """One group of all, which is worth it when most of the distinct strings were not merged yet."""
        if len(self.words) == 1:
            return
        tables, merged_words = _merged(self.words)
        merged = []
        for codes, table in zip(self.codes, tables, strict=True):
            while codes:
                merged.append(table[codes.pop(0)])
        self.codes, self.words = [merged], [merged_words]

    def finish(self) -> tuple[list[Array], pa.Array]:
        """Codes, in the order of the blocks, into the distinct strings, which are sorted."""
        self._sort()
        self._merge()
        words, codes = self.words[0], self.codes[0]
        if len(words) > 1:
            order = np.lexsort(words[::-1])
            rank = np.empty(len(order), dtype=np.int32)
            rank[order] = np.arange(len(order), dtype=np.int32)
            words = [word[order] for word in words]
            for place, part in enumerate(codes):
                codes[place] = rank[part]
        return codes, unpack(words)


def _merged(parts: list[Words]) -> tuple[list[Array], Words]:
    """The distinct strings of all parts, and for each part a table from its codes to theirs."""
    if all(len(words) == 1 for words in parts):
        found = _distinct(np.concatenate([words[0] for words in parts]))
        return [_places(found, words[0]) for words in parts], [found]
    words = _join(parts)
    moved, members = _group(words)
    ends = np.cumsum([len(part[0]) for part in parts])
    return np.split(moved, ends[:-1]), [word[members] for word in words]


def _distinct(words: Array) -> Array:
    """The distinct words, sorted, by all cores. (``np.unique`` takes several times as long.)"""
    found = _everywhere(lambda rows: _once(words[rows.start : rows.stop]), len(words))
    return found[0] if len(found) == 1 else _once(np.concatenate(found), "stable")  # which merges what is sorted


def _once(words: Array, kind: Literal["quicksort", "stable"] = "quicksort") -> Array:
    ordered = np.sort(words, kind=kind)
    new = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return np.asarray(ordered[new])


def _everywhere(job: Callable[[range], Array], rows: int) -> list[Array]:
    """A job on equal parts of the rows, one for each core."""
    count = threads.available() if rows > 2**20 else 1
    parts = [range(part * rows // count, (part + 1) * rows // count) for part in range(count)]
    if count == 1:
        return [job(parts[0])]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(job, parts))


def _places(found: Array, words: Array, turn: int = 0) -> Array:
    """The place of each word among the distinct ones, by a hash table that is filled and read as a whole.

    Of several words with one slot the last has it; those that lost, a few, get a table of their own.
    """
    shift, odd = np.uint64(62 - len(found).bit_length()), np.uint64(int(_ODD[0]) * (2 * turn + 1) % 2**64)
    slots, members = (found * odd) >> shift, np.arange(len(found), dtype=np.int32)
    table = np.zeros(1 << (64 - int(shift)), dtype=np.int32)
    table[slots] = members

    places = np.empty(len(words), dtype=np.int32)

    def guess(rows: range) -> Array:
        missed = [np.empty(0, dtype=np.intp)]
        for start in range(rows.start, rows.stop, 2**15):  # so that what is between fits into a cache
            part = words[start : min(start + 2**15, rows.stop)]
            guess = table[(part * odd) >> shift]
            places[start : start + len(part)] = guess
            missed.append(np.flatnonzero(found[guess] != part) + start)
        return np.concatenate(missed)

    rows = np.concatenate(_everywhere(guess, len(words)))
    if len(rows):
        lost = np.flatnonzero(table[slots] != members)
        places[rows] = lost[_places(found[lost], words[rows], turn + 1)]
    return places


def _join(parts: list[Words]) -> Words:
    """All rows of the parts; where one has two words, the others' second words are 0."""
    width = max(len(words) for words in parts)
    return [
        np.concatenate([words[at] if at < len(words) else np.zeros_like(words[0]) for words in parts])
        for at in range(width)
    ]


def _group(words: Words) -> tuple[Array, Array]:
    """Codes of equal strings, and the row of one of them for each code.

    The high bits of a hash above the bits of the row are one number; sorting those brings equal strings together. Every
    row is then compared with its group. The few that only have the hash of another are grouped among themselves.
    """
    count = len(words[0])
    bits = np.uint64(count.bit_length())
    keys = _hash(words)
    keys >>= bits
    keys <<= bits
    keys |= np.arange(count, dtype=np.uint64)
    keys.sort()
    new = np.empty(count, dtype=bool)
    new[0] = True
    rows = (keys & np.uint64((1 << count.bit_length()) - 1)).astype(np.intp)
    keys >>= bits
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    del keys
    codes = np.empty(count, dtype=np.int32)
    codes[rows] = np.cumsum(new, dtype=np.int32) - np.int32(1)
    members = rows[new]
    del rows, new
    odd = np.zeros(count, dtype=bool)
    for word in words:
        odd |= word[members][codes] != word
    if odd.any():
        strangers = np.flatnonzero(odd)
        again, found = _group([word[strangers] for word in words])
        codes[strangers] = again + np.int32(len(members))
        members = np.concatenate([members, strangers[found]])
    return codes, members


def _hash(words: Words) -> Array:
    """64 bits of which the high ones are mixed; only speed depends on how well."""
    keys = words[0] * _ODD[0]
    if len(words) > 1:
        keys ^= words[1]
        keys *= _ODD[1]
    keys ^= keys >> np.uint64(32)
    keys *= _ODD[0]
    return keys
