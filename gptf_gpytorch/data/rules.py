"""What entries must be: each rule states itself, then what came."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.data.vocabulary import Vocabulary
from gptf_gpytorch.errors import DataError, InputError


def index_type(shape: Sequence[int]) -> torch.dtype:
    """The smallest of int32 and int64 that holds every index."""
    return torch.int32 if max(shape) <= 2**31 else torch.int64


def shape(shape: Any) -> tuple[int, ...]:
    """Sizes of at least 1, of Python's or NumPy's kind."""
    try:
        found = tuple(operator.index(d) for d in shape)
    except TypeError:
        found = ()
    if not found or min(found) < 1 or max(found) > 2**62:
        raise InputError(f"shape must be the number of entities of each mode, at least 1. Got {shape!r}.")
    return found


def names(names: Any, modes: int) -> tuple[str, ...]:
    """Distinct names, one a mode."""
    found = tuple(names) or tuple(f"mode_{mode}" for mode in range(modes))
    if (
        isinstance(names, str)
        or len(found) != modes
        or len(set(found)) != modes
        or not all(isinstance(n, str) for n in found)
    ):
        raise InputError(f"names must be {modes} distinct strings, one for each mode. Got {names!r}.")
    return found


def vocabularies(vocabularies: Any, shape: tuple[int, ...], names: tuple[str, ...]) -> tuple[Vocabulary | None, ...]:
    """One vocabulary or None a mode, as long as the mode."""
    found = tuple(vocabularies) or (None,) * len(shape)
    if len(found) != len(shape):
        raise InputError(f"There must be one vocabulary (or None) for each of {len(shape)} modes. Got {len(found)}.")
    for vocabulary, size, name in zip(found, shape, names, strict=True):
        if vocabulary is not None and not isinstance(vocabulary, Vocabulary):
            raise InputError(f"The vocabulary of mode {name!r} must be a Vocabulary or None. Got {type(vocabulary)}.")
        if vocabulary is not None and len(vocabulary) != size:
            raise InputError(
                f"The vocabulary of mode {name!r} must have {size} ids, as shape says. Got {len(vocabulary)}."
            )
    return found


def _array(name: str, value: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers. Got {type(value).__name__}.") from error


def indices(value: Any, shape: tuple[int, ...], names: tuple[str, ...], low: int) -> Tensor:
    """Indices within the shape, copied to the smallest type that holds them."""
    array = _array("indices", value)
    if array.size == 0 and array.ndim <= 2:
        array = np.empty((0, len(shape)), dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise InputError(f"indices must be integers. Got {array.dtype}.")
    if array.ndim != 2 or array.shape[1] != len(shape):
        raise InputError(f"indices must be [N, {len(shape)}], a column a mode. Got {list(array.shape)}.")
    for mode, size in enumerate(shape):
        column = array[:, mode]
        if len(column) and (int(column.min()) < low or int(column.max()) >= size):
            row = int(np.flatnonzero((column < low) | (column >= size))[0])
            raise DataError(
                f"Indices of mode {names[mode]!r} must lie in [{low}, {size}). Got {column[row]} at row {row}."
            )
    return torch.from_numpy(
        np.array(array, dtype=np.int32 if index_type(shape) == torch.int32 else np.int64, order="C")
    )


def numbers(name: str, value: Any, count: int, *, low: float = -math.inf, integers: bool = False) -> Tensor:
    """One finite number an entry, copied."""
    array = _array(name, value)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} must be numbers. Got {array.dtype}.")
    if array.shape != (count,):
        raise InputError(f"{name} must be one for each of {count} entries. Got {list(array.shape)}.")
    bad = ~(np.isfinite(array) & (array >= low))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        rule = "finite" if low == -math.inf else f"finite and at least {low:g}"
        raise DataError(f"{name} must be {rule}. Got {array[row]} at row {row}.")
    kind = (
        np.int64 if integers and array.dtype.kind in "biu" else np.float32 if array.dtype == np.float32 else np.float64
    )
    return torch.from_numpy(array.astype(kind, copy=True))
