"""The row of each entry in the vocabulary of a mode, in the pieces that it was read in."""

from bisect import bisect_right
from itertools import accumulate
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def compact(codes: Array, count: int) -> Array:
    """Codes below ``count`` in as few bytes as they need."""
    return codes.astype(np.min_scalar_type(max(count - 1, 0)), copy=False)


class EntityRows:
    """Codes `[N]` in pieces and, where these are not the rows themselves, a table of the row for each code.

    Memory that is touched for the first time takes longer than what is done with it: so pieces are not joined, and
    their codes are not replaced, before the indices of all modes are written.
    """

    def __init__(self, pieces: list[Array], table: Array | None = None) -> None:
        self.pieces, self.table = pieces, table
        self.starts = [0, *accumulate(map(len, pieces))]

    def __len__(self) -> int:
        return self.starts[-1]

    def then(self, table: Array) -> "EntityRows":
        """What a table has for each row."""
        return EntityRows(self.pieces, table if self.table is None else table[self.table])

    def at(self, entry: int) -> int:
        """The row of an entry."""
        piece = bisect_right(self.starts, entry) - 1
        return int(self._found(self.pieces[piece][entry - self.starts[piece] :][:1])[0])

    def first(self, wanted: Array) -> int | None:
        """The first entry whose row is wanted, of all rows; None if none is."""
        for start, piece in zip(self.starts, self.pieces, strict=False):
            places = np.flatnonzero(wanted[self._found(piece)])
            if len(places):
                return start + int(places[0])
        return None

    def used(self, count: int) -> Array:
        """Which of so many rows some entry has."""
        found = np.zeros(count, dtype=bool)
        for piece in self.pieces:
            found[self._found(piece)] = True
        return found

    def whole(self) -> Array:
        """The rows `[N]`."""
        found = np.empty(len(self), dtype=np.int64)
        self.write(found, 0)
        return found

    def write(self, column: Array, start: int) -> None:
        """The rows of the entries from ``start`` on, as many as the column has room for."""
        written = 0
        piece = bisect_right(self.starts, start) - 1
        while written < len(column):
            begin = start + written - self.starts[piece]
            part = self.pieces[piece][begin : begin + len(column) - written]
            column[written : written + len(part)] = self._found(part)
            written, piece = written + len(part), piece + 1

    def _found(self, codes: Array) -> Array:
        # Codes lie within the table: to clip them takes less time than to check them.
        return codes if self.table is None else self.table.take(codes, mode="clip")
