"""Which entries an entity has: what the sums of a sweep run over."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

# Ranges of entities that one call maps: enough of them for the cores to be equally busy.
_CHUNKS = 64


@dataclass(frozen=True)
class Entities:
    """The entities that occur among the entries of all workers, their rows stacked over the modes `[A]`.

    :param ids: of each mode, the indices that occur, ascending.
    :param shape: the number of entities of each mode, whether or not they occur.
    """

    ids: tuple[Tensor, ...]
    shape: tuple[int, ...]

    @classmethod
    def among(cls, indices: Tensor, shape: Sequence[int]) -> "Entities":
        """Those of entries with these indices `[N, K]`."""
        return cls(tuple(torch.unique(column.long()) for column in indices.T), tuple(shape))

    @property
    def offsets(self) -> list[int]:
        """Where the rows of each mode begin, and where the last ones end `[K + 1]`."""
        return [0, *np.cumsum([len(ids) for ids in self.ids]).tolist()]

    def rows(self, indices: Tensor) -> Tensor:
        """Rows `[n, K]` (int32) of entries; -1 for an entity that does not occur."""
        rows = torch.empty(indices.shape, dtype=torch.int32)
        for mode, (ids, start) in enumerate(zip(self.ids, self.offsets[:-1], strict=True)):
            column = indices[:, mode].long().contiguous()
            place = torch.searchsorted(ids, column).clamp(max=len(ids) - 1)
            rows[:, mode] = torch.where(ids[place] == column, place + start, -1).int()
        return rows


@dataclass(frozen=True)
class Grouped:
    """The entries of a worker, grouped by the entities of one mode.

    :param order: `[n]` entries, those of an entity side by side.
    :param starts: `[a + 1]` where the entries of each entity begin in that order.
    :param rows: `[n, K]` of the entries in that order.
    :param chunks: ranges of entities with about as many entries each.
    """

    order: Tensor
    starts: Tensor
    rows: Tensor
    chunks: tuple[range, ...]

    @classmethod
    def by_mode(cls, rows: Tensor, mode: int, first: int, end: int) -> "Grouped":
        """Entries with stacked rows `[n, K]`, by the entities of a mode whose rows are ``first`` to ``end - 1``."""
        column = rows[:, mode].long() - first
        order = torch.argsort(column, stable=True)
        counts = torch.bincount(column, minlength=end - first)
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        marks = torch.searchsorted(starts, torch.linspace(0, len(rows), _CHUNKS + 1).long()[1:-1])
        bounds = [0, *marks.unique().tolist(), end - first]
        chunks = tuple(range(a, b) for a, b in pairwise(bounds) if a < b)
        return cls(order.int(), starts, rows[order].contiguous(), chunks)
