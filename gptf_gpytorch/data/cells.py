"""Cells of a tensor as sortable keys: one number a cell, so that sets of cells are sorted arrays."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from torch import Tensor

from gptf_gpytorch.distributed.threads import everywhere

Keys = np.ndarray[Any, np.dtype[Any]]


class CellKeys:
    r"""A one-to-one map between cells and keys, in the order of the indices.

    With fewer than :math:`2^{63}` cells the key is the position :math:`\sum_k i_k \prod_{l > k} d_l`. With more, modes
    are grouped so that each group has such a position, and the key is their bytes, the most significant first.

    :param shape: the number of entities of each mode.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.count = math.prod(shape)
        self.groups: list[list[int]] = [[]]
        size = 1
        for mode, d in enumerate(shape):
            if size * d >= 2**63:
                self.groups.append([])
                size = 1
            self.groups[-1].append(mode)
            size *= d

    @property
    def plain(self) -> bool:
        """Whether keys are positions, which can be counted with."""
        return len(self.groups) == 1

    def of(self, indices: Tensor | Keys) -> Keys:
        """Indices `[N, K]` -> keys `[N]`."""
        array = np.asarray(indices)
        positions = [self._position(array, group) for group in self.groups]
        if self.plain:
            return positions[0]
        # Fixed-width bytes compare as the numbers do; trailing zero bytes count for nothing in both.
        return np.stack(positions, axis=1).astype(">i8").view(f"S{8 * len(positions)}")[:, 0]

    def indices(self, keys: Keys) -> Keys:
        """Keys `[N]` -> indices `[N, K]`."""
        if self.plain:
            positions = [keys]
        else:
            width = len(self.groups)
            table = np.ascontiguousarray(keys).view(">i8").reshape(-1, width).astype(np.int64)
            positions = [table[:, column] for column in range(width)]
        found = np.empty((len(keys), len(self.shape)), dtype=np.int64)
        for group, position in zip(self.groups, positions, strict=True):
            rest = position
            for mode in reversed(group):
                rest, found[:, mode] = np.divmod(rest, self.shape[mode])
        return found

    def union(self, parts: Iterable[Keys]) -> Keys:
        """The distinct keys of all parts, sorted."""
        found = [part for part in parts if len(part)]
        if not found:
            return self.of(np.empty((0, len(self.shape)), dtype=np.int64))
        return np.unique(np.concatenate(found))

    def _position(self, array: Keys, group: list[int]) -> Keys:
        positions = np.zeros(len(array), dtype=np.int64)

        def fill(rows: range) -> None:
            for start in rows[:: 2**15]:  # whose rows stay in a cache from one mode to the next
                part = slice(start, min(start + 2**15, rows.stop))
                for mode in group:
                    positions[part] *= self.shape[mode]
                    positions[part] += array[part, mode]

        everywhere(fill, len(array))
        return positions


def repeat(keys: Keys) -> bool:
    """Whether two keys are equal: not much slower than to sort them anywhere, and faster where sorting is slow.

    Every key writes its row into a slot of its own choice, and then looks who was the last to write there. Equal keys
    share a slot: either one of them was the last and the other finds it there, or both go on with all who lost.
    """
    for turn in range(8):
        if keys.dtype != np.int64 or len(keys) < 2**16:
            break
        losers = _losers(keys, np.uint64(0x9E3779B97F4A7C15 * (2 * turn + 1) % 2**64))
        if losers is None:
            return True
        keys = losers
    keys = np.sort(keys)
    return bool((keys[1:] == keys[:-1]).any())


def _losers(keys: Keys, odd: np.uint64) -> Keys | None:
    """The keys whose slot another one has; None if that is an equal one."""
    table = np.empty(1 << len(keys).bit_length(), dtype=np.int32 if len(keys) < 2**31 else np.int64)
    shift = np.uint64(65 - len(table).bit_length())

    def parts(rows: range) -> Iterator[tuple[Keys, Any, Keys]]:
        for start in rows[:: 2**15]:
            part = keys[start : min(start + 2**15, rows.stop)]
            slots = ((part ^ (part >> 32)).view(np.uint64) * odd) >> shift
            yield part, slots.view(np.int64), np.arange(start, start + len(part), dtype=table.dtype)

    def write(rows: range) -> None:
        for _, slots, numbers in parts(rows):
            table[slots] = numbers

    def look(rows: range) -> Keys | None:
        lost = []
        for part, slots, numbers in parts(rows):
            last = table.take(slots, mode="clip")
            away = np.flatnonzero(last != numbers)
            lost.append(part[away])
            if (keys.take(last[away]) == lost[-1]).any():
                return None
        return np.concatenate(lost)

    everywhere(write, len(keys))
    found = everywhere(look, len(keys))
    return None if any(part is None for part in found) else np.concatenate([part for part in found if part is not None])


def contains(keys: Keys, wanted: Keys) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of the wanted keys are among the sorted ones."""
    if not len(keys):
        return np.zeros(len(wanted), dtype=bool)
    place = np.searchsorted(keys, wanted)
    place[place == len(keys)] = 0
    found: np.ndarray[Any, np.dtype[np.bool_]] = keys[place] == wanted
    return found
