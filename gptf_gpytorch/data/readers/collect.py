"""Blocks of a table -> entries. Every reader of tables ends here."""

import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pyarrow as pa
import torch

from gptf_gpytorch.data import duplicates
from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.data.readers.ids import IdColumn
from gptf_gpytorch.data.readers.numbers import IndexColumn, NumberColumn, TimeColumn
from gptf_gpytorch.data.readers.request import Chosen, Request, Source
from gptf_gpytorch.data.readers.rows import Array, EntityRows
from gptf_gpytorch.data.rules import index_type
from gptf_gpytorch.data.vocabulary import Vocabulary
from gptf_gpytorch.distributed.threads import everywhere
from gptf_gpytorch.errors import DataError, DataWarning
from gptf_gpytorch.wording import option


class Parts:
    """The columns of a table while its blocks arrive, then as rows of vocabularies that may still be replaced."""

    def __init__(self, request: Request, chosen: Chosen, source: Source, *, text: bool = False) -> None:
        self.request, self.chosen, self.source = request, chosen, source
        kept = np.float32 if request.dtype == torch.float32 else np.float64
        self.value = NumberColumn(chosen.value, source, dtype=kept, binary=request.binary)
        self.weight = chosen.weight and NumberColumn(chosen.weight, source, dtype=kept, negative=False)
        self.time = chosen.time and TimeColumn(chosen.time, source)
        self.modes = [self._mode(mode, name, text) for mode, name in enumerate(chosen.modes)]
        self.values: Array = np.empty(0, dtype=kept)
        self.indices: Array = np.empty((0, len(chosen.modes)), dtype=np.int32)
        self.count = 0

    def _mode(self, mode: int, name: str, text: bool) -> IdColumn | IndexColumn:
        if self.request.index_base is not None and self.request.vocabulary(mode, name) is None:
            size = None if self.request.shape is None else self.request.shape[mode]
            return IndexColumn(name, self.source, self.request.index_base, size)
        return IdColumn(name, self.source, self.request.kind(mode, name), text=text)

    def add(self, block: pa.RecordBatch) -> None:
        """Take the next block."""
        if not block.num_rows:
            return
        for column in (self.value, self.weight, self.time, *self.modes):
            if column:
                column.add(block.column(column.name))
        self.count += block.num_rows

    def check_any(self, count: int) -> None:
        """There must be entries."""
        if not count:
            raise DataError(f"There must be at least one entry. Got none in {self.source.name}.")

    def close(self) -> None:
        """End the threads of the columns."""
        for column in self.modes:
            if isinstance(column, IdColumn):
                column.close()

    def finish(self) -> tuple[list[EntityRows], list[Vocabulary | int]]:
        """The rows of each mode, and its vocabulary (the ids found, or those given) or its size."""
        with ThreadPoolExecutor(2 + len(self.modes)) as pool:
            values, room = pool.submit(self.value.finish), pool.submit(self._room)
            finished = list(pool.map(lambda column: column.finish(), self.modes))
            self.values, self.indices = values.result(), room.result()
        rows, sizes = [], []
        for mode, (column, (found, size)) in enumerate(zip(self.modes, finished, strict=True)):
            given = self.request.vocabulary(mode, column.name)
            if isinstance(size, Vocabulary) and given is not None and len(found):
                found, size = self._translate(found, size, given, column.name), given
            rows.append(found)
            sizes.append(size)
        return rows, sizes

    def _room(self) -> Array:
        """Memory for the indices, touched once: that takes time, while most columns have nothing to do any more."""
        indices = np.empty((self.count, len(self.modes)), dtype=np.int32)
        indices.reshape(-1)[::1024] = 0
        return indices

    def _translate(self, rows: EntityRows, found: Vocabulary, given: Vocabulary, name: str) -> EntityRows:
        if found.kind != given.kind:
            raise self.source.complain(
                f"Ids must be {given.kind}s, as the vocabulary's are.", found[rows.at(0)], name, 0
            )
        table = given.encode(found.ids, unseen="prior").numpy()
        unknown = rows.first(table < 0) if self.request.unseen == "error" else None
        if unknown is not None:
            rule = f"Ids must be among the {len(given):,} of the vocabulary (or pass {option('unseen', 'prior')})."
            raise self.source.complain(rule, found[rows.at(unknown)], name, unknown)
        return rows.then(table)

    def entries(self, rows: list[EntityRows], sizes: list[Vocabulary | int]) -> TensorEntries:
        """The entries of rows in vocabularies that are final."""
        shape = tuple(size if isinstance(size, int) else len(size) for size in sizes)
        for name, size, wanted in zip(self.chosen.modes, shape, self.request.shape or shape, strict=True):
            if size != wanted:
                raise DataError(
                    f"Mode {name!r} must have the {wanted} entities that shape says. "
                    f"Got {size} ids in {self.source.name} (index_base= takes ids as indices)."
                )
        kind = np.int32 if index_type(shape) == torch.int32 else np.int64
        indices = self.indices.astype(kind, copy=False)

        def fill(some: range) -> None:
            for start in some[:: 2**15]:  # whose rows stay in a cache from one mode to the next
                part = slice(start, min(start + 2**15, some.stop))
                for mode, found in enumerate(rows):
                    found.write(indices[part, mode], start)

        everywhere(fill, self.count)
        rows.clear()  # their memory is free again
        return TensorEntries(
            indices=torch.from_numpy(indices),
            values=torch.from_numpy(self.values),
            shape=shape,
            names=self.chosen.modes,
            vocabularies=tuple(size if isinstance(size, Vocabulary) else None for size in sizes),
            weights=torch.from_numpy(self.weight.finish()) if self.weight else None,
            times=torch.from_numpy(self.time.finish()) if self.time else None,
            unseen=self.request.unseen,
            _trusted=True,
        )


def collect(
    blocks: Iterable[pa.RecordBatch], request: Request, chosen: Chosen, source: Source, *, text: bool = False
) -> TensorEntries:
    """Entries of the blocks, with duplicates resolved.

    :param text: the source has no types of its own, so that ids which read as integers may be integers.
    """
    with closing(Parts(request, chosen, source, text=text)) as parts:
        for block in blocks:
            parts.add(block)
        parts.check_any(parts.count)
        entries = parts.entries(*parts.finish())
    return settle(entries, request, source)


def settle(entries: TensorEntries, request: Request, source: Source) -> TensorEntries:
    """Resolve duplicates, and look once more at what they have become."""
    merged = duplicates.resolve(entries, request.duplicates, where=source.place)
    if request.binary and len(merged) < len(entries) and not bool(((merged.values == 0) | (merged.values == 1)).all()):
        row = int(((merged.values != 0) & (merged.values != 1)).nonzero()[0])
        cell = ", ".join(map(repr, merged.ids([row])[0]))
        raise DataError(
            f"Labels must be 0 or 1 after duplicates={request.duplicates!r}. "
            f"Got {float(merged.values[row]):g} for ({cell}) in {source.name}."
        )
    note_single(merged, source.name)
    return merged


def note_single(entries: TensorEntries, name: str) -> None:
    """A mode with one entity is allowed, and noted: it adds nothing that tells entries apart."""
    for mode, size in zip(entries.names, entries.shape, strict=True):
        if size == 1:
            warnings.warn(
                f"Mode {mode!r} of {name} has one entity: its factors are the same for every entry.",
                DataWarning,
                stacklevel=2,
            )
