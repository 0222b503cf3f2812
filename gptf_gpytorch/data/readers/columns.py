"""Columns that arrive block by block as Arrow arrays, each turned into what entries are made of, or into an error."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gptf_gpytorch.data.readers import packing
from gptf_gpytorch.data.readers.request import IdKind, Source
from gptf_gpytorch.data.vocabulary import Vocabulary, id_type
from gptf_gpytorch.errors import DataError

Array = np.ndarray[Any, Any]
LONGEST_ID = 2**16
_WAITING = 2**27  # bytes of a column that wait to be encoded together


class IdColumn:
    """The ids of a mode: codes `[N]` into distinct ids, which :meth:`finish` turns into rows of a vocabulary.

    Blocks are checked when they come, and encoded by a thread of their own. Short strings that are mostly distinct are
    packed and sorted; all else waits, and is left to Arrow's hash table, many blocks at once because merging a
    dictionary of each would be slow. Memory is that of the distinct ids, the codes, and what waits, which is bounded.
    """

    def __init__(self, name: str, source: Source, kind: IdKind, *, text: bool) -> None:
        self.name, self.source, self.kind, self.text = name, source, kind, text
        self.type: pa.DataType | None = None
        self.count = 0
        self.distinct: pa.Array | None = None
        self.codes: list[Array] = []
        self.packer: packing.Packer | None = None
        self.packing: bool | None = None
        self.waiting: list[pa.Array] = []
        self.lane = ThreadPoolExecutor(1)
        self.tasks: deque[Future[None]] = deque()

    def add(self, block: pa.Array) -> None:
        """Take the next block."""
        target = id_type(block.type)
        if target is None or (self.type is not None and target != self.type):
            raise self.source.complain(
                "Ids must be all strings or all integers (cast the column, or leave it out with modes=).",
                f"{block.type} {block[0].as_py() if len(block) else ''}",
                self.name,
                self.count,
            )
        if block.null_count or (pa.types.is_dictionary(block.type) and block.dictionary.null_count):
            row = pc.index(pc.is_null(_plain(block)), True).as_py()
            raise self.source.complain("Ids must not be missing.", None, self.name, self.count + row)
        self.type = target
        self.count += len(block)
        self.tasks.append(self.lane.submit(self._take, block))
        if len(self.tasks) > 8:
            self.tasks.popleft().result()

    def close(self) -> None:
        """End the thread."""
        self.lane.shutdown(cancel_futures=True)

    def _take(self, block: pa.Array) -> None:
        if self.packing is None:
            self.packing = pa.types.is_string(block.type) and pc.count_distinct(block).as_py() > len(block) / 8
        if self.packing and packing.packs(block):
            if self.packer is None:
                self._encode()
                self.packer = packing.Packer()
            self.packer.add(block)
            return
        if self.packer or (self.waiting and self.waiting[0].type != block.type):
            self._encode()
        self.waiting.append(block)
        if sum(part.nbytes for part in self.waiting) > _WAITING:
            self._encode()

    def _encode(self) -> None:
        """Turn what waits into codes."""
        if self.packer:
            (codes, ids), self.packer = self.packer.finish(), None
        elif self.waiting:
            blocks, self.waiting = pa.chunked_array(self.waiting), []
            encoded = blocks.unify_dictionaries() if pa.types.is_dictionary(blocks.type) else blocks.dictionary_encode()
            ids = self._cast(encoded.chunk(0).dictionary)
            codes = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
        else:
            return
        if self.distinct is not None:
            both = pa.chunked_array([_dictionary(self.distinct, 0), _dictionary(ids, len(ids))]).unify_dictionaries()
            ids, moved = both.chunk(0).dictionary, both.chunk(1).indices.to_numpy(zero_copy_only=False)
            codes = [moved[part] for part in codes]
        self.distinct = ids
        self.codes += [part.astype(np.int32, copy=False) for part in codes]

    def _cast(self, ids: pa.Array) -> pa.Array:
        try:
            return ids.cast(self.type)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"Integer ids must lie within 64 bits, signed. Got: {error}, in column {self.name!r} of {self.source.name}."
            ) from error

    def finish(self) -> tuple[Array, Vocabulary]:
        """The rows `[N]` of all ids, and their vocabulary: the ids that are used, sorted."""
        while self.tasks:
            self.tasks.popleft().result()
        self._encode()
        if self.distinct is None:
            return np.empty(0, dtype=np.int32), Vocabulary([])
        codes, self.codes = np.concatenate(self.codes), []
        used = np.zeros(len(self.distinct), dtype=bool)
        used[codes] = True
        if not used.all():  # categories of a table that no row has
            codes = (np.cumsum(used, dtype=np.int32) - 1)[codes]
            self.distinct = self.distinct.filter(pa.array(used))
        ids = self._typed(self.distinct, codes)
        if pc.all(pc.less(ids[:-1], ids[1:])).as_py():
            return codes, Vocabulary.trusted(ids)
        order = pc.array_sort_indices(ids)
        rank = np.empty(len(ids), dtype=np.int32)
        rank[order.to_numpy()] = np.arange(len(ids), dtype=np.int32)
        return rank[codes], Vocabulary.trusted(ids.take(order))

    def _typed(self, ids: pa.Array, codes: Array) -> pa.Array:
        """The ids as what the caller asked for, or as what they are."""
        if pa.types.is_integer(ids.type):
            return ids if self.kind != "string" else ids.cast(pa.large_string())
        self._check_text(ids, codes)
        if self.kind == "string" or (self.kind == "auto" and not self.text):
            return ids
        integers = _integers(ids)
        if integers is not None:
            return integers
        if self.kind == "integer":
            bad = np.array([_integers(ids[place : place + 1]) is None for place in range(len(ids))])
            raise self._complain("Ids must be integers, written without leading zeros or signs.", bad, ids, codes)
        if _floats(ids):
            bad = pc.match_substring(ids, ".").to_numpy(zero_copy_only=False)
            rule = "Ids must be strings or integers (ids='string' takes the text as it is, modes= leaves a column out)."
            raise self._complain(rule, bad, ids, codes)
        return ids

    def _check_text(self, ids: pa.Array, codes: Array) -> None:
        rules = {
            "Ids must not be empty.": pc.equal(pc.binary_length(ids), 0),
            "Ids must not hold a newline or NUL.": pc.match_substring_regex(ids, r"[\x00\r\n]"),
            f"Ids must be at most {LONGEST_ID:,} bytes long.": pc.greater(pc.binary_length(ids), LONGEST_ID),
        }
        for rule, found in rules.items():
            bad = found.to_numpy(zero_copy_only=False)
            if bad.any():
                raise self._complain(rule, bad, ids, codes)

    def _complain(self, rule: str, bad: Array, ids: pa.Array, codes: Array) -> DataError:
        row = int(np.flatnonzero(bad[codes])[0])
        return self.source.complain(rule, ids[int(codes[row])].as_py(), self.name, row)


class IndexColumn:
    """Indices of a mode that count from a base: rows `[N]` from 0, in 32 bits while they fit."""

    def __init__(self, name: str, source: Source, base: int, size: int | None) -> None:
        self.name, self.source, self.base, self.size = name, source, base, size
        self.blocks: list[Array] = []
        self.count, self.highest = 0, -1

    def add(self, block: pa.Array) -> None:
        """Take the next block."""
        rule = f"Indices must be integers of at least {self.base}."
        if not pa.types.is_integer(block.type):
            first = block[0].as_py() if len(block) else None
            raise self.source.complain(rule, first, self.name, self.count)
        if block.null_count:
            raise self.source.complain(rule, None, self.name, self.count + pc.index(block.is_null(), True).as_py())
        found = block.to_numpy(zero_copy_only=False)
        low = int(found.min(initial=self.base))
        high = int(found.max(initial=self.base))
        if low < self.base:
            row = int(np.flatnonzero(found < self.base)[0])
            raise self.source.complain(rule, int(found[row]), self.name, self.count + row)
        if self.size is not None and high - self.base >= self.size:
            row = int(np.flatnonzero(found >= self.size + self.base)[0])
            rule = f"Indices must lie in [{self.base}, {self.size + self.base}), as shape says."
            raise self.source.complain(rule, int(found[row]), self.name, self.count + row)
        self.highest = max(self.highest, high - self.base)
        self.blocks.append((found - self.base).astype(np.int32 if high - self.base < 2**31 else np.int64))
        self.count += len(block)

    def finish(self) -> tuple[Array, int]:
        """The rows `[N]`, and the size of the mode."""
        blocks, self.blocks = self.blocks, []
        return _joined(blocks, np.int32), self.size if self.size is not None else self.highest + 1


class NumberColumn:
    """Values or weights `[N]`: finite, and what else the column must be."""

    def __init__(self, name: str, source: Source, *, dtype: Any, binary: bool = False, negative: bool = True) -> None:
        self.name, self.source, self.dtype, self.binary, self.negative = name, source, dtype, binary, negative
        self.blocks: list[Array] = []
        self.count = 0

    def add(self, block: pa.Array) -> None:
        """Take the next block."""
        kind = block.type.value_type if pa.types.is_dictionary(block.type) else block.type
        if not (
            pa.types.is_floating(kind)
            or pa.types.is_integer(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_decimal(kind)
        ):
            first = block[0].as_py() if len(block) else None
            raise self.source.complain("Values must be numbers.", first, self.name, self.count)
        if block.null_count:
            row = pc.index(block.is_null(), True).as_py()
            raise self.source.complain("Values must not be missing.", None, self.name, self.count + row)
        found = block.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        self._refuse(~np.isfinite(found), "Values must be finite numbers.", found)
        if self.binary:
            self._refuse((found != 0) & (found != 1), "Labels must be 0 or 1.", found)
        if not self.negative:
            self._refuse(found < 0, "Weights must be at least 0.", found)
        kept = found.astype(self.dtype)
        self._refuse(~np.isfinite(kept), f"Values must be finite in {np.dtype(self.dtype)}.", found)
        self.blocks.append(kept)
        self.count += len(block)

    def _refuse(self, bad: Array, rule: str, found: Array) -> None:
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise self.source.complain(rule, float(found[row]), self.name, self.count + row)

    def finish(self) -> Array:
        """The numbers `[N]`."""
        blocks, self.blocks = self.blocks, []
        return _joined(blocks, self.dtype)


class TimeColumn:
    """Times `[N]`: numbers as they are, dates and timestamps as microseconds since 1970 (UTC)."""

    def __init__(self, name: str, source: Source) -> None:
        self.name, self.source = name, source
        self.blocks: list[Array] = []
        self.count = 0

    def add(self, block: pa.Array) -> None:
        """Take the next block."""
        if block.null_count:
            row = pc.index(block.is_null(), True).as_py()
            raise self.source.complain("Times must not be missing.", None, self.name, self.count + row)
        if pa.types.is_timestamp(block.type) or pa.types.is_date(block.type):
            moments = block.cast(pa.timestamp("us", tz=getattr(block.type, "tz", None)), safe=False)
            found = moments.cast(pa.int64()).to_numpy()
        elif pa.types.is_integer(block.type) or pa.types.is_floating(block.type):
            found = block.to_numpy(zero_copy_only=False)
        else:
            items = block.to_pylist()
            row = next((row for row, item in enumerate(items) if not reads_as_time(str(item))), 0)
            rule = "Times must be numbers, dates or timestamps."
            raise self.source.complain(rule, items[row], self.name, self.count + row)
        if not np.isfinite(found).all():
            row = int(np.flatnonzero(~np.isfinite(found))[0])
            raise self.source.complain("Times must be finite.", float(found[row]), self.name, self.count + row)
        self.blocks.append(found)
        self.count += len(block)

    def finish(self) -> Array:
        """The times `[N]`."""
        return _joined(self.blocks, np.int64)


def _joined(blocks: list[Array], empty: Any) -> Array:
    """One array of all blocks, of the given type where there are none."""
    return np.concatenate(blocks) if blocks else np.empty(0, dtype=empty)


def _plain(block: pa.Array) -> pa.Array:
    return block.dictionary_decode() if pa.types.is_dictionary(block.type) else block


def _dictionary(ids: pa.Array, count: int) -> pa.DictionaryArray:
    """The first ids, each once, as codes into all of them."""
    return pa.DictionaryArray.from_arrays(pa.array(np.arange(count, dtype=np.int32)), ids)


def reads_as_time(text: str) -> bool:
    """Whether text is a number, or a date or timestamp in ISO's form."""
    for kind in (float, datetime.fromisoformat):
        with suppress(ValueError):
            kind(text)
            return True
    return False


def _integers(ids: pa.Array) -> pa.Array | None:
    """The ids as integers, if writing those gives the same text again."""
    try:
        ids[:100].cast(pa.int64())  # a cast that fails does not stop before the end
        found = ids.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    return found if found.cast(pa.large_string()).equals(ids) else None


def _floats(ids: pa.Array) -> bool:
    """Whether every id reads as a number, and some as a fraction."""
    try:
        ids[:100].cast(pa.float64())
        ids.cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return bool(pc.any(pc.match_substring(ids, ".")).as_py())
