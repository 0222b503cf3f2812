"""Arrays: sparse ones of scipy, pydata/sparse and torch, dense ones with NaN as missing, pairs of indices and values."""

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.data.readers.collect import settle
from gptf_gpytorch.data.readers.request import Request, Source
from gptf_gpytorch.data.readers.rows import Array
from gptf_gpytorch.errors import DataError, InputError

Found = tuple[Array, Array, tuple[int, ...] | None, str]


def read_array(array: Any, request: Request) -> TensorEntries | None:
    """The entries of an array of any kind; None if it is none."""
    if isinstance(array, Tensor):
        found: Found | None = _torch(array)
    elif isinstance(array, tuple | list) and len(array) == 2:
        found = _pair(*array)
    elif isinstance(array, np.ndarray):
        found = _dense(array)
    else:
        found = _sparse(array)
    if found is None:
        return None
    indices, values, shape, name = found
    return _entries(indices, values, shape, request, name)


def _entries(
    indices: Array, values: Array, shape: tuple[int, ...] | None, request: Request, name: str
) -> TensorEntries:
    source = Source(name, lambda row: f"row {row} of {name}")
    for option in ("weight", "time"):
        if getattr(request, option) is not None:
            raise InputError(
                f"{option}= names a column of a table. Got {name}: pass TensorEntries(..., {option}s=...)."
            )
    if request.vocabularies:
        raise InputError(
            f"vocabularies= are for ids of a table. Got {name}: pass TensorEntries(..., vocabularies=...)."
        )
    if indices.ndim != 2 or values.shape != (len(indices),):
        raise DataError(
            f"There must be indices [N, K] and values [N]. Got {list(indices.shape)} and {list(values.shape)}."
        )
    if indices.dtype.kind not in "iu":
        raise DataError(f"Indices must be integers. Got {indices.dtype} in {name}.")
    if values.dtype.kind not in "biuf":
        raise DataError(f"Values must be numbers. Got {values.dtype} in {name}.")
    if not len(indices):
        raise DataError(f"There must be at least one entry. Got none in {name}.")
    names = request.modes or tuple(f"mode_{mode}" for mode in range(indices.shape[1]))
    base = request.index_base or 0
    size = request.shape or shape or tuple(int(top) - base + 1 for top in indices.max(axis=0))
    if len(size) != indices.shape[1] or len(names) != indices.shape[1]:
        raise InputError(f"modes and shape must be of the {indices.shape[1]} modes of {name}. Got {names} and {size}.")
    for mode, (top, column) in enumerate(zip(size, indices.T, strict=True)):
        low, high = base, operator.index(top) + base
        bad = (column < low) | (column >= high)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            rule = f"Indices must lie in [{low}, {high})." if base <= int(column.max()) else f"Indices start at {base}."
            raise source.complain(rule, int(column[row]), names[mode], row)
    for rule, bad in (
        ("Values must be finite numbers.", ~np.isfinite(values)),
        ("Labels must be 0 or 1.", (values != 0) & (values != 1) if request.binary else np.zeros(1, dtype=bool)),
    ):
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            cell = tuple(indices[row].tolist())
            raise DataError(f"{rule} Got {values[row]} at {cell}, row {row} of {name}.")
    kept = values.astype(np.float32 if request.dtype == torch.float32 else np.float64)
    cells = torch.from_numpy(indices.astype(np.int64) - base)
    return settle(TensorEntries(cells, torch.from_numpy(kept), size, names), request, source)


def _torch(tensor: Tensor) -> Found:
    tensor = tensor.detach().cpu()
    if tensor.layout == torch.strided:
        return _dense(tensor.numpy(), "the torch tensor")
    if tensor.layout != torch.sparse_coo:
        tensor = tensor.to_sparse_coo()
    if tensor.dense_dim():
        raise DataError(f"A sparse tensor must have no dense dimensions. Got {tensor.dense_dim()} of {tensor.dim()}.")
    # Not coalesced: that would add up duplicates before anyone was asked.
    return tensor._indices().T.numpy(), tensor._values().numpy(), tuple(tensor.shape), "the sparse torch tensor"


def _pair(indices: Any, values: Any) -> Found:
    try:
        arrays = [np.asarray(part.detach().cpu() if isinstance(part, Tensor) else part) for part in (indices, values)]
    except (TypeError, ValueError) as error:
        raise DataError(f"A pair must be indices [N, K] and values [N]. Got: {error}.") from error
    return arrays[0], arrays[1], None, "the pair of arrays"


def _dense(array: Array, name: str = "the dense array") -> Found:
    if array.ndim < 1 or array.dtype.kind not in "biuf":
        raise DataError(
            f"A dense array must have modes and hold numbers. Got {array.dtype} of shape {list(array.shape)}."
        )
    there = ~np.ma.getmaskarray(array)
    array = np.ma.getdata(array)
    if array.dtype.kind == "f":
        there &= ~np.isnan(array)
    return np.argwhere(there), array[there], array.shape, name


def _sparse(array: Any) -> Found | None:
    """scipy.sparse and pydata/sparse, recognised by what they offer, so that neither has to be installed."""
    module = type(array).__module__.partition(".")[0]
    if module not in ("scipy", "sparse") or not hasattr(array, "shape"):
        return None
    if not hasattr(array, "coords") and hasattr(array, "tocoo"):
        array = array.tocoo()
    if not hasattr(array, "coords"):
        return None
    name = f"the {module}{'.sparse' if module == 'scipy' else ''} {type(array).__name__}"
    fill = getattr(array, "fill_value", 0)
    if fill != 0 and fill == fill:
        raise DataError(f"Cells that are not listed must be 0 or NaN, which stand for unknown. Got {fill} in {name}.")
    return np.stack([np.asarray(column) for column in array.coords], axis=1), np.asarray(array.data), array.shape, name
