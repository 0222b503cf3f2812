"""Which zeros to train and test on: sampled from the cells that nobody has seen, seeded, without repeats."""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.data.cells import CellKeys, Keys, contains
from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.data.rules import index_type
from gptf_gpytorch.errors import DataError, InputError

Exclude = TensorEntries | Sequence[TensorEntries] | None
Batch = Tensor | np.ndarray[Any, Any] | Sequence[Sequence[int]]
Candidates = Callable[[np.random.Generator], Iterable[Batch]]
"""A source of zeros that mean something: given a random generator, batches of indices `[n, K]`, best first."""

_PATIENCE = 1000  # batches of a candidate generator without anything new


def sample_zeros(
    entries: TensorEntries,
    count: int | None = None,
    *,
    ratio: float | None = None,
    exclude: Exclude = None,
    candidates: Candidates | None = None,
    weight: float | None = None,
    seed: int = 0,
) -> TensorEntries:
    """Entries of value 0 at cells that are not known, each cell at most once.

    Every cell that is neither in ``entries`` nor in ``exclude`` is as likely as any other. The same seed gives the same
    zeros, in the same order, wherever it runs: workers sample all of them and take their shards.

    :param entries: the known entries. None of their cells is sampled, whatever their values.
    :param count: how many zeros; or ``ratio`` times the number of entries that are not 0.
    :param exclude: entries, or several sets of them, whose cells are not sampled either: test sets, held-out nonzeros.
    :param candidates: proposes cells instead, from domain knowledge: those that are free are taken in its order.
    :param weight: of a zero, 1 by default; needed only if it differs, as entries with weights need none.
    """
    _same_tensor(entries, exclude)
    wanted = _count(entries, count, ratio)
    cells = CellKeys(entries.shape)
    taken = cells.union(cells.of(part.indices[part.known]) for part in [entries, *_several(exclude)])
    free = cells.count - len(taken)
    if wanted > free:
        raise DataError(
            f"Zeros must come from cells that are neither known nor excluded. "
            f"Got {wanted:,} zeros asked for, and {free:,} such cells of {cells.count:,}."
        )
    generator = np.random.default_rng([_whole("seed", seed, 0), 0])
    if candidates is not None:
        keys = _proposed(cells, taken, wanted, candidates(generator), entries)
    elif cells.plain:
        keys = _free_cells(taken, _distinct(generator, free, wanted))
    else:
        keys = _rejected(cells, taken, wanted, generator)
    return _zeros(entries, cells.indices(keys), weight)


def balance(
    entries: TensorEntries,
    ratio: float = 1.0,
    *,
    exclude: Exclude = None,
    candidates: Candidates | None = None,
    weight: float | None = None,
    seed: int = 0,
) -> TensorEntries:
    """The paper's training set: the nonzeros, and ``ratio`` times as many zeros, never one of a test set.

    Zeros that are known count: if there are more than enough, as many as are needed are chosen among them; if there
    are fewer, all of them are kept and the rest is sampled (:func:`sample_zeros`).

    Times are left out, as sampled zeros have none.

    :param exclude: the test sets, and whatever else must not be trained on; an entry in them is an error.
    """
    _same_tensor(entries, exclude)
    if not bool(entries.known.all()):
        raise InputError("Entries to train on must be of known entities: entries[entries.known]. Got unknown ones.")
    entries = replace(entries, times=None)
    cells = CellKeys(entries.shape)
    forbidden = cells.union(cells.of(part.indices[part.known]) for part in _several(exclude))
    leaked = contains(forbidden, cells.of(entries.indices))
    if leaked.any():
        row = int(np.flatnonzero(leaked)[0])
        raise DataError(
            f"Training entries must not be in what is excluded. Got {int(leaked.sum())} that are, "
            f"{entries.ids([row])[0]} at row {row} first."
        )
    nonzero, zero = entries[entries.values != 0], entries[entries.values == 0]
    wanted = _count(entries, None, ratio)
    if len(zero) >= wanted:
        generator = np.random.default_rng([_whole("seed", seed, 0), 1])
        chosen = np.sort(_distinct(generator, len(zero), wanted))
        return TensorEntries.concat([nonzero, zero[torch.from_numpy(chosen)]])
    sampled = sample_zeros(
        entries, wanted - len(zero), exclude=exclude, candidates=candidates, weight=weight, seed=seed
    )
    if sampled.weights is not None and entries.weights is None:
        ones = torch.ones(len(entries), dtype=entries.values.dtype)
        entries = replace(entries, weights=ones)
        nonzero, zero = entries[entries.values != 0], entries[entries.values == 0]
    return TensorEntries.concat([nonzero, zero, sampled])


def _zeros(entries: TensorEntries, indices: Keys, weight: float | None) -> TensorEntries:
    """Entries of value 0 with the same modes as the others."""
    count, dtype = len(indices), entries.values.dtype
    weights = None
    if weight is not None or entries.weights is not None:
        weights = torch.full((count,), 1.0 if weight is None else float(weight), dtype=dtype)
        if not bool((weights.isfinite() & (weights >= 0)).all()):
            raise InputError(f"weight must be finite and at least 0. Got {weight!r}.")
    return replace(
        entries,
        indices=torch.from_numpy(indices).to(index_type(entries.shape)),
        values=torch.zeros(count, dtype=dtype),
        weights=weights,
        times=None,
    )


def _distinct(generator: np.random.Generator, top: int, count: int) -> Keys:
    """Distinct numbers below ``top``, uniformly, in random order, in memory of the order of ``count``."""
    if 2 * count > top:
        return generator.permutation(top)[:count]
    found = np.empty(0, dtype=np.int64)
    while len(found) < count:
        more = generator.integers(top, size=int(1.1 * (count - len(found))) + 16)
        found = _first_of_each(np.concatenate([found, more]))
    return found[:count]


def _first_of_each(keys: Keys) -> Keys:
    """Keys without repeats, in the order of their first appearance."""
    _, places = np.unique(keys, return_index=True)
    found: Keys = keys[np.sort(places)]
    return found


def _free_cells(taken: Keys, ranks: Keys) -> Keys:
    """The r-th free cell for every rank r, where ``taken`` are the sorted keys of the others.

    Before the taken key t_j there are t_j - j free cells. So the free cell of rank r comes after as many taken ones as
    have t_j - j <= r.
    """
    before = taken - np.arange(len(taken))
    return ranks + np.searchsorted(before, ranks, side="right")


def _rejected(cells: CellKeys, taken: Keys, count: int, generator: np.random.Generator) -> Keys:
    """Free cells where there are too many to count with: nearly every draw is one."""
    found = taken[:0]
    while len(found) < count:
        n = int(1.1 * (count - len(found))) + 16
        drawn = cells.of(np.stack([generator.integers(d, size=n) for d in cells.shape], axis=1))
        found = _first_of_each(np.concatenate([found, drawn[~contains(taken, drawn)]]))
    return found[:count]


def _proposed(cells: CellKeys, taken: Keys, count: int, batches: Iterable[Batch], entries: TensorEntries) -> Keys:
    """The first free cells of what a caller proposes."""
    found, idle = [taken[:0]], 0
    have, known = 0, taken
    for indices in _checked(batches, entries):
        keys = _first_of_each(cells.of(indices))
        keys = keys[~contains(known, keys)][: count - have]
        if len(keys):
            found.append(keys)
            have, idle = have + len(keys), 0
            known = np.union1d(known, keys)
        else:
            idle += 1
        if have >= count or idle > _PATIENCE:
            break
    if have < count:
        raise DataError(
            f"Candidates must propose {count:,} distinct cells that are neither known nor excluded. Got {have:,}"
            f"{f', and {_PATIENCE} batches without another' if idle > _PATIENCE else ''}."
        )
    return np.concatenate(found)


def _checked(batches: Iterable[Batch], entries: TensorEntries) -> Iterator[Keys]:
    for batch in batches:
        array = np.asarray(batch)
        if array.size == 0:
            yield np.empty((0, len(entries.shape)), dtype=np.int64)
            continue
        # The same checks as for any entries, with the same words.
        proposed = TensorEntries(torch.as_tensor(array), torch.zeros(len(array)), entries.shape, entries.names)
        yield proposed.indices.numpy()


def _count(entries: TensorEntries, count: int | None, ratio: float | None) -> int:
    if (count is None) == (ratio is None):
        raise InputError(f"Either count or ratio must say how many zeros. Got count={count!r} and ratio={ratio!r}.")
    if ratio is None:
        return _whole("count", count, 0)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio < float("inf"):
        raise InputError(f"ratio must be a number of at least 0. Got {ratio!r}.")
    return round(ratio * int((entries.values != 0).sum()))


def _whole(name: str, value: Any, low: int) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        found = low - 1
    if found < low or isinstance(value, bool):
        raise InputError(f"{name} must be an integer of at least {low}. Got {value!r}.")
    return found


def _several(exclude: Exclude) -> list[TensorEntries]:
    if exclude is None:
        return []
    return [exclude] if isinstance(exclude, TensorEntries) else list(exclude)


def _same_tensor(entries: TensorEntries, exclude: Exclude) -> None:
    for part in _several(exclude):
        if part.shape != entries.shape or part.vocabularies != entries.vocabularies:
            raise InputError(
                "What is excluded must be entries of the same tensor, with the same shape and vocabularies. "
                f"Got shapes {entries.shape} and {part.shape}."
            )
