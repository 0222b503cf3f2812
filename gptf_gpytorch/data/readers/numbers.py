"""Columns of numbers that arrive block by block as Arrow arrays: indices, values, weights and times, or an error."""

from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gptf_gpytorch.data.readers.request import Source
from gptf_gpytorch.data.readers.rows import Array, EntityRows


def unboxed(block: pa.Array) -> Array:
    """Numbers without a missing one, where they are. (Arrow's ``to_numpy`` would import pandas.)"""
    return np.from_dlpack(block)


def boxed(places: Array) -> pa.Array:
    """Integers of 64 bits as Arrow has them. (``pyarrow.array`` would import pandas.)"""
    places = np.ascontiguousarray(places, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(places), [None, pa.py_buffer(places)])


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
        found = unboxed(block)
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

    def finish(self) -> tuple[EntityRows, int]:
        """The rows `[N]`, and the size of the mode."""
        blocks, self.blocks = self.blocks, []
        return EntityRows(blocks), self.size if self.size is not None else self.highest + 1


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
        found = unboxed(block.cast(pa.float64(), safe=False))
        self._refuse(~np.isfinite(found), "Values must be finite numbers.", found)
        if self.binary:
            self._refuse(found * found != found, "Labels must be 0 or 1.", found)
        if not self.negative:
            self._refuse(found < 0, "Weights must be at least 0.", found)
        kept = found.astype(self.dtype, copy=False)
        if kept is not found:
            self._refuse(~np.isfinite(kept), f"Values must be finite in {np.dtype(self.dtype)}.", found)
        self.blocks.append(kept.astype(np.int8) if self.binary else kept)
        self.count += len(block)

    def _refuse(self, bad: Array, rule: str, found: Array) -> None:
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise self.source.complain(rule, float(found[row]), self.name, self.count + row)

    def finish(self) -> Array:
        """The numbers `[N]`."""
        blocks, self.blocks = self.blocks, []
        return np.concatenate([np.empty(0, dtype=self.dtype), *blocks], dtype=self.dtype)


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
            found = unboxed(moments.cast(pa.int64()))
        elif pa.types.is_integer(block.type) or pa.types.is_floating(block.type):
            found = unboxed(block)
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
        return np.concatenate(self.blocks) if self.blocks else np.empty(0, dtype=np.int64)


def reads_as_time(text: str) -> bool:
    """Whether text is a number, or a date or timestamp in ISO's form."""
    for kind in (float, datetime.fromisoformat):
        with suppress(ValueError):
            kind(text)
            return True
    return False
