"""Distinct short strings as numbers: a hash table that is read a block at a time, several times faster than one of strings.

A string of at most 16 bytes, none of them NUL, is one or two 64-bit words, exactly: its bytes, the most significant
first, then zeros. So words compare as the strings do.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gptf_gpytorch.data.readers.rows import Array, compact

Words = list[Array]
"""The first eight bytes of each string, and where some are longer, the next eight."""

LONGEST = 16
ROWS = 2**15  # that are looked up together: what is between fits into a cache
_ALL = 2**64 - 1
_MASKS = [
    np.array([_ALL ^ (_ALL >> 8 * min(max(n - at, 0), 8)) for n in range(LONGEST + 1)], np.uint64) for at in (0, 8)
]
_ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
ROOM = 2**15  # distinct strings that a new table has room for
_FREE = -1


def is_text(block: pa.Array) -> bool:
    """Whether a block is of strings that lie one after the other."""
    return bool(pa.types.is_string(block.type) or pa.types.is_large_string(block.type))


def packs(block: pa.Array) -> bool:
    """Whether a block of strings can be packed."""
    if not is_text(block) or (pc.max(pc.binary_length(block)).as_py() or 0) > LONGEST:
        return False
    return not holds(block, b"\x00")


def is_even(block: pa.Array) -> bool:
    """Whether all strings are of one length."""
    ends = _text(block)[0]
    return bool(len(ends) > 1 and (np.diff(ends) == ends[1] - ends[0]).all())


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
    if there.all():
        offsets = np.arange(0, table.size + 1, table.shape[1])
        return pa.LargeStringArray.from_buffers(len(table), pa.py_buffer(offsets), pa.py_buffer(table))
    offsets = np.zeros(len(table) + 1, dtype=np.int64)
    np.cumsum(there.sum(axis=1), out=offsets[1:])
    return pa.LargeStringArray.from_buffers(len(table), pa.py_buffer(offsets), pa.py_buffer(table[there]))


class Packer:
    """Strings that arrive block by block -> codes into the distinct ones.

    A hash table with open addressing, of which NumPy takes one step for many rows at once: a row whose slot is free, or
    holds its own word, is done; the few others try their next slot. Where several rows want one free slot the last to be
    written has it.
    """

    def __init__(self) -> None:
        self.codes: list[Array] = []
        self.count = 0
        self.words: Words = [np.empty(ROOM, dtype=np.uint64)]  # the distinct ones, and room for more
        self.slots = np.full(2 * ROOM, _FREE, dtype=np.int32)  # a code, or free; at most half of them are taken

    def add(self, block: pa.Array) -> None:
        """Take the next block."""
        words = pack(block)
        while len(self.words) < len(words):
            self.words.append(np.zeros_like(self.words[0]))
        codes = np.empty(len(block), dtype=np.int32)
        for start in range(0, len(block), ROWS):
            part = slice(start, start + ROWS)
            self._number([word[part] for word in words], codes[part])
        self.codes.append(compact(codes, self.count))

    def _number(self, words: Words, codes: Array) -> None:
        """Write the codes of words; new ones get the next codes."""
        while self.count + len(codes) > len(self.words[0]):
            self._grow()
        words = words + [np.zeros_like(words[0])] * (len(self.words) - len(words))
        keys, rows, turn = _hash(words), np.arange(len(codes)), 0
        while len(rows):
            slots = self._slots(keys, turn)
            found = self.slots.take(slots, mode="clip")
            free = np.flatnonzero(found == _FREE)
            if len(free):
                found[free] = self._claim(slots[free], [word[free] for word in words])
            right = self._holds(found, words)
            if turn == 0 and right.all():
                codes[:] = found
                return
            codes[rows[right]] = found[right]
            wrong = np.flatnonzero(~right)
            rows, keys, words, turn = rows[wrong], keys[wrong], [word[wrong] for word in words], turn + 1

    def _claim(self, slots: Array, words: Words) -> Array:
        """Give free slots to new words, one to each slot; the codes that the slots now hold."""
        self.slots[slots] = np.arange(len(slots), dtype=np.int32)
        winners = np.flatnonzero(self.slots[slots] == np.arange(len(slots)))
        new = slice(self.count, self.count + len(winners))
        for mine, theirs in zip(self.words, words, strict=True):
            mine[new] = theirs[winners]
        self.slots[slots[winners]] = np.arange(new.start, new.stop, dtype=np.int32)
        self.count = new.stop
        return np.asarray(self.slots[slots])

    def _holds(self, found: Array, words: Words) -> Array:
        """Whether each code is that of the word."""
        same: Array = self.words[0].take(found, mode="clip") == words[0]
        for mine, theirs in zip(self.words[1:], words[1:], strict=True):
            same &= mine.take(found, mode="clip") == theirs
        return same

    def _slots(self, keys: Array, turn: int) -> Array:
        """Where a word is looked for at its first, second, ... turn: in the end, everywhere."""
        first = (keys >> np.uint64(65 - len(self.slots).bit_length())).view(np.int64)
        return np.asarray((first + turn * (turn + 1) // 2) & (len(self.slots) - 1) if turn else first)

    def _grow(self) -> None:
        """Room for four times as many; all find their slots again, as if they were new."""
        known, count = [word[: self.count] for word in self.words], self.count
        self.words = [np.zeros(4 * len(word), dtype=np.uint64) for word in self.words]
        self.slots, self.count = np.full(4 * len(self.slots), _FREE, dtype=np.int32), 0
        order = np.empty(count, dtype=np.int32)
        for start in range(0, count, ROWS):
            part = slice(start, start + ROWS)
            self._number([word[part] for word in known], order[part])
        # They were numbered in another order: back to theirs.
        for mine, theirs in zip(self.words, known, strict=True):
            mine[:count] = theirs
        rank = np.empty(count, dtype=np.int32)
        rank[order] = np.arange(count, dtype=np.int32)
        taken = np.flatnonzero(self.slots != _FREE)
        self.slots[taken] = rank[self.slots[taken]]

    def finish(self) -> tuple[list[Array], pa.Array]:
        """Codes, in the order of the blocks, into the distinct strings."""
        return self.codes, unpack([word[: self.count] for word in self.words])


def order(ids: pa.Array) -> Array:
    """The places of ids in their order."""
    if not packs(ids):
        found: Array = np.from_dlpack(pc.array_sort_indices(ids))
        return found
    words = pack(ids)
    if len(words) > 1:
        return np.asarray(np.lexsort(words[::-1]))
    middle = np.median(words[0][:: 1 + len(ids) // 1000]) if len(ids) else 0.0
    halves = [np.flatnonzero(half) for half in (words[0] < middle, words[0] >= middle)]
    with ThreadPoolExecutor(2) as pool:
        return np.concatenate(list(pool.map(lambda half: half[np.argsort(words[0][half])], halves)))


def _hash(words: Words) -> Array:
    """64 bits of which the high ones are mixed; only speed depends on how well. A second word of zeros is as none."""
    keys: Array = words[0] * _ODD[0]
    for word in words[1:]:
        keys ^= word
    keys ^= keys >> np.uint64(32)
    keys *= _ODD[1]
    return keys
