"""Modes and ids in a user's words, as the rows of a fitted model."""

import difflib
import operator
from typing import Any

import torch
from torch import Tensor

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.errors import DataError, InputError
from gptf_gpytorch.factors import check_indices
from gptf_gpytorch.training.saved import FittedModel
from gptf_gpytorch.wording import option


def mode_of(fitted: FittedModel, name: str) -> int:
    """The position of a mode, or an error with the nearest name."""
    if name in fitted.mode_names:
        return fitted.mode_names.index(name)
    near = difflib.get_close_matches(str(name), fitted.mode_names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise InputError(f"A mode must be one of the model's: {', '.join(fitted.mode_names)}. Got {name!r}.{hint}")


def row_of(fitted: FittedModel, mode: int, wanted: Any) -> int:
    """The row of an entity: of its id, or of its index from 0 where the mode has no ids.

    Text that is written as an integer is (as all that comes from a command line) stands for the integer.
    """
    name, vocabulary = fitted.mode_names[mode], fitted.vocabularies[mode]
    if vocabulary is not None and vocabulary.kind == "string":
        if isinstance(wanted, str) and wanted in vocabulary:
            return int(vocabulary.encode([wanted]))
        raise DataError(f"Mode {name!r} must have the id: it has {len(vocabulary):,} strings. Got {wanted!r}.")
    if isinstance(wanted, str) and wanted.removeprefix("-").isascii() and str(_integer(wanted)) == wanted:
        wanted = int(wanted)
    if vocabulary is not None:
        if not isinstance(wanted, bool) and wanted in vocabulary:
            return int(vocabulary.encode([wanted]))
        raise DataError(f"Mode {name!r} must have the id: it has {len(vocabulary):,} integers. Got {wanted!r}.")
    row = None if isinstance(wanted, bool) else _integer(wanted)
    if row is None or isinstance(wanted, str) or not 0 <= row < fitted.shape[mode]:
        raise DataError(f"Mode {name!r} has no ids: its indices lie in [0, {fitted.shape[mode]}). Got {wanted!r}.")
    return row


def ids_of(fitted: FittedModel, mode: int, rows: Tensor) -> list[Any]:
    """The ids of rows, or the rows themselves where the mode has no ids."""
    vocabulary = fitted.vocabularies[mode]
    return rows.tolist() if vocabulary is None else vocabulary.decode(rows.numpy())


def indices_of(fitted: FittedModel, entries: TensorEntries | Any) -> Tensor:
    """The indices `[n, K]` of entries in the rows of the model, -1 for an entity that it does not know.

    Entries must have been read with the model's vocabularies: their rows would mean other entities.
    """
    if not isinstance(entries, TensorEntries):
        return _checked(fitted, entries)
    check_modes(fitted, entries)
    for name, mine, theirs in zip(fitted.mode_names, fitted.vocabularies, entries.vocabularies, strict=True):
        if mine is not None and theirs is not None and mine is not theirs and mine != theirs:
            raise InputError(
                f"Entries must be read with the model's vocabularies (read_entries() does it). "
                f"Got other ids for mode {name!r}: {theirs!r}."
            )
    return _checked(fitted, entries.indices)


def check_modes(fitted: FittedModel, entries: TensorEntries) -> None:
    """Entries must have the model's modes, in its order; modes that were never named may be any."""
    unnamed = entries.names == tuple(f"mode_{mode}" for mode in range(len(fitted.shape)))
    if entries.names != fitted.mode_names and not unnamed:
        raise InputError(
            f"Entries must have the model's modes, {', '.join(fitted.mode_names)}. Got {', '.join(entries.names)}."
        )


def count_of(top: Any) -> int:
    """How many to return: at least one."""
    found = None if isinstance(top, bool | str) else _integer(top)
    if found is None or found < 1:
        raise InputError(f"{option('top')} must be a whole number from 1 on. Got {top!r}.")
    return found


def _checked(fitted: FittedModel, indices: Any) -> Tensor:
    """Indices within the shape of the model, or -1."""
    try:
        found = torch.as_tensor(indices)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"Indices must be a tensor or an array of integers. Got {type(indices).__name__}.") from error
    if found.dim() == 2 and not len(found):
        return found.new_empty((0, len(fitted.shape)), dtype=torch.int64)
    # The known rules, of which -1 is an exception.
    clamped = found if found.is_floating_point() or found.dtype == torch.bool else torch.where(found == -1, 0, found)
    check_indices(clamped, fitted.shape)
    return found


def _integer(value: Any) -> int | None:
    try:
        return int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        return None
