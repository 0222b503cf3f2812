"""A column of ids that arrives block by block as Arrow arrays -> rows of a vocabulary, or an error."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gptf_gpytorch.data.readers import packing
from gptf_gpytorch.data.readers.numbers import boxed, unboxed
from gptf_gpytorch.data.readers.request import IdKind, Source
from gptf_gpytorch.data.readers.rows import Array, EntityRows, compact
from gptf_gpytorch.data.vocabulary import Vocabulary, id_type
from gptf_gpytorch.errors import DataError
from gptf_gpytorch.wording import option

LONGEST_ID = 2**16
# Bytes of a column that wait to be encoded together: few, so that their memory is used again soon, but many more than
# the distinct ids, which each time are merged.
_LEAST, _MOST, _MORE = 2**24, 2**27, 8


class IdColumn:
    """The ids of a mode: codes `[N]` into distinct ids, which :meth:`finish` turns into rows of a vocabulary.

    Blocks are checked when they come, and encoded by a thread of their own. Short strings that are mostly distinct, or
    all of one length, are packed; all else waits, and is left to Arrow's hash table, many blocks at once because merging a
    dictionary of each would be slow. Memory is that of the distinct ids, the codes, and what waits, which is bounded.
    """

    def __init__(self, name: str, source: Source, kind: IdKind, *, text: bool) -> None:
        self.name, self.source, self.kind, self.text = name, source, kind, text
        self.type: pa.DataType | None = None
        self.count = 0
        self.distinct: Any = None
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
                f"Ids must be all strings or all integers (cast the column, or leave it out with {option('modes')}).",
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
            self.packing = packing.is_text(block) and (
                packing.is_even(block) or pc.count_distinct(block).as_py() > len(block) / 4
            )
        if self.packing and packing.packs(block):
            if self.packer is None:
                self._encode()
                self.packer = packing.Packer()
            self.packer.add(block)
            return
        if self.packer or (self.waiting and self.waiting[0].type != block.type):
            self._encode()
        self.waiting.append(block)
        known = 0 if self.distinct is None else self.distinct.nbytes
        if sum(part.nbytes for part in self.waiting) > min(max(_LEAST, _MORE * known), _MOST):
            self._encode()

    def _encode(self) -> None:
        """Turn what waits into codes."""
        if self.packer:
            (codes, ids), self.packer = self.packer.finish(), None
        elif self.waiting and pa.types.is_dictionary(self.waiting[0].type):
            blocks, self.waiting = pa.chunked_array(self.waiting).unify_dictionaries(), []
            codes, ids = (
                [unboxed(block.indices) for block in blocks.chunks],
                self._cast(blocks.chunk(0).dictionary, self.type),
            )
        elif self.waiting:
            blocks, self.waiting = self.waiting, []
            self.codes += self._numbered(blocks)
            return
        else:
            return
        if self.distinct is None:
            self.distinct = ids
        else:
            (moved,) = self._numbered([ids])
            codes = [moved[part] for part in codes]
        self.codes += [compact(part, len(self.distinct)) for part in codes]

    def _numbered(self, blocks: list[pa.Array]) -> list[Array]:
        """Codes of ids, where those that are known keep theirs."""
        known = [] if self.distinct is None else [self.distinct]
        parts = [*known, *blocks]
        # Text with offsets of 32 bits is encoded as it is, while it has room for all: that is what csv files come as.
        small = packing.is_text(blocks[0]) and sum(part.nbytes for part in parts) < 2**30
        kind = blocks[0].type if small else self.type
        encoded = pa.chunked_array([self._cast(part, kind) for part in parts]).dictionary_encode()
        self.distinct = self._cast(encoded.chunk(0).dictionary, self.type)
        return [compact(unboxed(block.indices), len(self.distinct)) for block in encoded.chunks[len(known) :]]

    def _cast(self, ids: pa.Array, kind: pa.DataType) -> pa.Array:
        try:
            return ids.cast(kind)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"Integer ids must lie within 64 bits, signed. Got: {error}, in column {self.name!r} of {self.source.name}."
            ) from error

    def finish(self) -> tuple[EntityRows, Vocabulary]:
        """The rows `[N]` of all ids, and their vocabulary: the ids that are used, sorted."""
        while self.tasks:
            self.tasks.popleft().result()
        self._encode()
        if self.distinct is None:
            return EntityRows([]), Vocabulary([])
        rows = EntityRows(self.codes)
        if not self.text:
            rows = self._drop_unused(rows)
        ids = self._typed(self.distinct, rows)
        if pc.all(pc.less(ids[:-1], ids[1:])).as_py():
            return rows, Vocabulary.trusted(ids)
        order = packing.order(ids)
        rank = np.empty(len(ids), dtype=np.int32)
        rank[order] = np.arange(len(ids), dtype=np.int32)
        return rows.then(rank), Vocabulary.trusted(ids.take(boxed(order)))

    def _drop_unused(self, rows: EntityRows) -> EntityRows:
        """Leave out categories of a table that no row has."""
        used = rows.used(len(self.distinct))
        if used.all():
            return rows
        self.distinct = self.distinct.filter(pa.array(used))
        return rows.then(np.cumsum(used, dtype=np.int32) - np.int32(1))

    def _typed(self, ids: pa.Array, rows: EntityRows) -> pa.Array:
        """The ids as what the caller asked for, or as what they are."""
        if pa.types.is_integer(ids.type):
            return ids if self.kind != "string" else ids.cast(pa.large_string())
        self._check_text(ids, rows)
        if self.kind == "string" or (self.kind == "auto" and not self.text):
            return ids
        integers = _integers(ids)
        if integers is not None:
            return integers
        if self.kind == "integer":
            bad = np.array([_integers(ids[place : place + 1]) is None for place in range(len(ids))])
            raise self._complain("Ids must be integers, written without leading zeros or signs.", bad, ids, rows)
        if _floats(ids):
            bad = pc.match_substring(ids, ".").to_numpy(zero_copy_only=False)
            rule = (
                f"Ids must be strings or integers ({option('ids', 'string')} takes the text as it is, "
                f"{option('modes')} leaves a column out)."
            )
            raise self._complain(rule, bad, ids, rows)
        return ids

    def _check_text(self, ids: pa.Array, rows: EntityRows) -> None:
        lengths = unboxed(pc.binary_length(ids))
        rules = {
            "Ids must not be empty.": lengths == 0,
            f"Ids must be at most {LONGEST_ID:,} bytes long.": lengths > LONGEST_ID,
        }
        if packing.holds(ids, b"\x00\r\n"):
            control = pc.match_substring_regex(ids, r"[\x00\r\n]")
            rules["Ids must not hold a newline or NUL."] = control.to_numpy(zero_copy_only=False)
        for rule, bad in rules.items():
            if bad.any():
                raise self._complain(rule, bad, ids, rows)

    def _complain(self, rule: str, bad: Array, ids: pa.Array, rows: EntityRows) -> DataError:
        entry = rows.first(bad) or 0
        return self.source.complain(rule, ids[rows.at(entry)].as_py(), self.name, entry)


def _plain(block: pa.Array) -> pa.Array:
    return block.dictionary_decode() if pa.types.is_dictionary(block.type) else block


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
