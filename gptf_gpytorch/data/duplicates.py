"""Several entries for one cell: an error, unless the caller says what they mean."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import torch

from gptf_gpytorch.data.cells import CellKeys, Keys, repeat
from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.errors import DataError, InputError
from gptf_gpytorch.wording import option

DuplicatePolicy = Literal["error", "mean", "sum", "last", "keep"]
"""What several entries of one cell become: an error, their mean, sum or last one, or entries of their own."""


def check_policy(policy: str, allowed: tuple[str, ...] = get_args(DuplicatePolicy)) -> None:
    """One of the policies for duplicates."""
    if policy not in allowed:
        raise InputError(f"{option('duplicates')} must be one of {', '.join(allowed)}. Got {policy!r}.")


def resolve(
    entries: TensorEntries, policy: DuplicatePolicy = "error", *, where: Callable[[int], str] | None = None
) -> TensorEntries:
    """Entries with one for each cell (any number with "keep"), where the cell first appeared.

    "mean" is weighted where there are weights, which add up. "sum" adds values and refuses weights, as their sum would
    say nothing. "last" keeps the last entry whole. "mean" and "sum" keep the latest time. Cells with an unknown entity
    are left alone.

    :param where: names the place of a row in the source, for the error.
    """
    check_policy(policy)
    if policy == "keep" or len(entries) < 2:
        return entries
    mask = entries.known.numpy() if entries.unseen == "prior" else None
    cells = entries.indices if mask is None else entries[mask].indices
    keys = CellKeys(entries.shape).of(cells)
    if not repeat(keys):
        return entries
    known = np.arange(len(entries)) if mask is None else np.flatnonzero(mask)
    if policy == "error":
        raise DataError(_complaint(entries, known, keys, where or (lambda row: f"row {row}")))
    merged, first = _merge(entries[known], keys, policy)
    unknown = np.setdiff1d(np.arange(len(entries)), known, assume_unique=True)
    order = np.argsort(np.concatenate([known[first], unknown]))
    return TensorEntries.concat([merged, entries[unknown]])[order]


def _merge(entries: TensorEntries, keys: Keys, policy: DuplicatePolicy) -> tuple[TensorEntries, Keys]:
    """One entry for each key, and the row of its first."""
    _, first, group, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    if policy == "last":
        last = np.zeros(len(first), dtype=np.int64)
        np.maximum.at(last, group, np.arange(len(keys)))
        return entries[last], first
    if policy == "sum" and entries.weights is not None:
        raise InputError(
            f"{option('duplicates', 'sum')} must have entries without weights. Got weights: use 'mean', 'last' or 'keep'."
        )
    values = entries.values.numpy().astype(np.float64)
    weights = np.ones(len(keys)) if entries.weights is None else entries.weights.numpy().astype(np.float64)
    total = np.bincount(group, weights)
    summed = np.bincount(group, values * weights)
    if policy == "mean":
        plain = np.bincount(group, values) / counts  # for cells whose weights are all 0
        summed = np.divide(summed, total, out=plain, where=total > 0)
    found = entries[first]
    changes: dict[str, Any] = {"values": torch.from_numpy(summed).to(entries.values.dtype)}
    if entries.weights is not None:
        changes["weights"] = torch.from_numpy(total).to(entries.weights.dtype)
    if entries.times is not None:
        latest = entries.times.numpy()[first].copy()
        np.maximum.at(latest, group, entries.times.numpy())
        changes["times"] = torch.from_numpy(latest)
    return replace(found, **changes), first


def _complaint(entries: TensorEntries, rows: Keys, keys: Keys, where: Callable[[int], str]) -> str:
    """The count and the first of the duplicates.

    :param rows: where the keys stand among the entries.
    """
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[group] != np.arange(len(keys)))  # whose cell came before
    pairs = [(int(rows[first[group[place]]]), int(rows[place])) for place in again[:3]]
    places = {row: where(row) for row in sorted({row for pair in pairs for row in pair})}  # one pass over a file
    shown = []
    for before, row in pairs:
        cell = zip(entries.names, entries.ids([row])[0], strict=True)
        named = ", ".join(f"{name}={item!r}" for name, item in cell)
        shown.append(f"({named}) at {places[before]} and {places[row]}")
    return (
        f"Each cell must have one entry, or {option('duplicates')} must say what several mean (mean, sum, last, keep). "
        f"Got {len(again)} more entries than cells: {'; '.join(shown)}{'; ...' if len(again) > 3 else ''}."
    )
