"""Distinct short strings by sorting: several times faster than a hash table that does not fit into a cache.

A string of at most 16 bytes, none of them NUL, is one or two 64-bit words, exactly: its bytes, the most significant
first, then zeros. So words compare as the strings do.
"""

from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gptf_gpytorch.data.readers.rows import Array
from gptf_gpytorch.distributed import threads

Words = list[Array]
"""The first eight bytes of each string, and where some are longer, the next eight."""

LONGEST = 16
ROWS = 2**24  # that are sorted together, 128 MB of words: merging groups takes longer than a larger group
_ALL = 2**64 - 1
_MASKS = [
    np.array([_ALL ^ (_ALL >> 8 * min(max(n - at, 0), 8)) for n in range(LONGEST + 1)], np.uint64) for at in (0, 8)
]
_ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


def is_text(block: pa.Array) -> bool:
    """Whether a block is of strings that lie one after the other."""
    return bool(pa.types.is_string(block.type) or pa.types.is_large_string(block.type))


def packs(block: pa.Array) -> bool:
    """Whether a block of strings can be packed."""
    if not is_text(block) or (pc.max(pc.binary_length(block)).as_py() or 0) > LONGEST:
        return False
    return not holds(block, b"\x00")


def holds(block: pa.Array, characters: bytes) -> bool:
    """Whether some of these characters are in the text of some of the strings."""
    _, low, high, data = _text(block)
    return any((data[low:high] == character).any() for character in characters)


def _text(block: pa.Array) -> tuple[Array, int, int, Array]:
    """The ends of the strings in the text, the part of the text that is theirs, and the text."""
    _, offsets, data = block.buffers()
    kind = np.int64 if pa.types.is_large_string(block.type) else np.int32
    ends = np.frombuffer(offsets, dtype=kind)[block.offset : block.offset + len(block) + 1]
    return ends, int(ends[0]), int(ends[-1]), np.frombuffer(b"" if data is None else data, dtype=np.uint8)


def pack(block: pa.Array) -> Words:
    """The words of each string."""
    ends, low, high, data = _text(block)
    lengths = np.diff(ends)
    if len(lengths) and lengths.min() == lengths.max() == 8:
        return _pack_equal(data[low:high], len(lengths), 8)
    text = np.zeros(high - low + 16, dtype=np.uint8)  # so that a word may start at the end
    text[: high - low] = data[low:high]
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
        waiting, self.waiting, self.rows = self.waiting, [], 0
        if all(len(words) == 1 for words in waiting):
            parts = [words[0] for words in waiting]
            words = [_distinct(parts)]
            codes = _places(words[0], parts)
        else:
            words = _join(waiting)
            group, members = _group(words)
            codes, words = [group.astype(np.int32, copy=False)], [word[members] for word in words]
        self.codes.append(codes)
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
        alone = [words[0] for words in parts]
        found = _distinct(alone)
        return _places(found, alone), [found]
    words = _join(parts)
    moved, members = _group(words)
    ends = np.cumsum([len(part[0]) for part in parts])
    return np.split(moved, ends[:-1]), [word[members] for word in words]


def _distinct(parts: list[Array]) -> Array:
    """The distinct words, sorted, by all cores. (``np.unique`` takes several times as long.)"""
    found = threads.everywhere(lambda some: _once(_slice(parts, some)), sum(map(len, parts)))
    return found[0] if len(found) == 1 else _once(found, "stable")  # which merges what is sorted


def _slice(parts: list[Array], rows: range) -> list[Array]:
    """What of the parts lies within rows of all of them."""
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return [
        part[max(rows.start - end + len(part), 0) : max(rows.stop - end + len(part), 0)]
        for part, end in zip(parts, ends, strict=True)
    ]


def _once(parts: list[Array], kind: Literal["quicksort", "stable"] = "quicksort") -> Array:
    ordered = np.concatenate(parts)
    ordered.sort(kind=kind)
    new = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return np.asarray(ordered[new])


def _places(found: Array, parts: list[Array], turn: int = 0) -> list[Array]:
    """The place of each word of the parts among the distinct ones, by a hash table that is filled and read as a whole.

    Of several words with one slot the last has it; those that lost, a few, get a table of their own.
    """
    shift, odd = np.uint64(62 - len(found).bit_length()), np.uint64(int(_ODD[0]) * (2 * turn + 1) % 2**64)
    slots, members = (found * odd) >> shift, np.arange(len(found), dtype=np.int32)
    table = np.zeros(1 << (64 - int(shift)), dtype=np.int32)
    table[slots] = members
    lost = np.flatnonzero(table[slots] != members)
    shared = slots[lost]
    table[shared] = -1 - table[shared]  # a word with a slot of its own need not be compared: there is no other

    ends = np.cumsum([len(part) for part in parts])
    places = np.split(np.empty(ends[-1], dtype=np.int32), ends[:-1])

    def guess(rows: range) -> list[tuple[Array, Array, Array]]:
        """Guess; of the wrong guesses, the words, the places that were written and which of them are wrong."""
        missed = []
        for words, into in zip(_slice(parts, rows), _slice(places, rows), strict=True):
            for start in range(0, len(words), 2**15):  # so that what is between fits into a cache
                part, place = words[start : start + 2**15], into[start : start + 2**15]
                np.take(table, (part * odd) >> shift, out=place, mode="clip")
                doubtful = np.flatnonzero(place < 0)
                guesses = -1 - place[doubtful]
                place[doubtful] = guesses
                wrong = doubtful[found[guesses] != part[doubtful]]
                missed.append((part[wrong], place, wrong))
        return missed

    missed = [one for some in threads.everywhere(guess, sum(map(len, parts))) for one in some if len(one[0])]
    if missed:
        again = _places(found[lost], [words for words, _, _ in missed], turn + 1)
        for (_, place, wrong), right in zip(missed, again, strict=True):
            place[wrong] = lost[right]
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
