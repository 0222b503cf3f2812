"""The inputs of a few entries as a table of their own, compiled.

Where there are fewer entries than entities, this is less work than to scale the tables of all.
"""

from typing import Any

from numba import njit

from gptf_gpytorch.variational.native import exp


@njit(nogil=True, cache=True)
def gather(table: Any, indices: Any, mode: int, first: int, rows: Any) -> None:
    """Write a mode's columns, from the first on, of the entries' rows."""
    for j in range(len(indices)):
        for d in range(table.shape[1]):
            rows[j, first + d] = table[indices[j, mode], d]


@njit(nogil=True, cache=True)
def scatter(rows: Any, indices: Any, mode: int, first: int, table: Any) -> None:
    """Add a mode's columns to its table: the transpose of ``gather``."""
    for j in range(len(indices)):
        for d in range(table.shape[1]):
            table[indices[j, mode], d] += rows[j, first + d]


@njit(nogil=True, cache=True)
def draw(logs: Any, places: Any, numbers: Any) -> None:
    """Deviations times normal numbers, which are at the places that ``loops.drawn`` has found, instead of their logs."""
    exp(logs.reshape(-1))
    for j in range(len(logs)):
        sign, place = 1.0 - 2.0 * (places[j] % 2), places[j] // 2
        for d in range(logs.shape[1]):
            logs[j, d] *= sign * numbers[place, d]
