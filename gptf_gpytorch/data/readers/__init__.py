"""Readers: one front door for what users have."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gptf_gpytorch.data.duplicates import DuplicatePolicy
from gptf_gpytorch.data.entries import MANIFEST, TensorEntries
from gptf_gpytorch.data.readers.arrays import read_array
from gptf_gpytorch.data.readers.request import IdKind, Request
from gptf_gpytorch.data.readers.tables import read_parquet, read_table
from gptf_gpytorch.data.readers.text import read_separated, read_spaced
from gptf_gpytorch.data.vocabulary import UnseenPolicy, Vocabulary
from gptf_gpytorch.errors import DataError, InputError

FORMATS = {"csv": "csv", "tsv": "tsv", "tns": "tns", "parquet": "parquet", "pq": "parquet"}


def read(
    source: Any,
    *,
    value: str = "value",
    modes: Sequence[str] | None = None,
    weight: str | None = None,
    time: str | None = None,
    binary: bool = False,
    shape: Sequence[int] | None = None,
    duplicates: DuplicatePolicy = "error",
    ids: IdKind | Mapping[str, IdKind] = "auto",
    vocabularies: Mapping[str, Vocabulary] | Sequence[Vocabulary | None] | None = None,
    unseen: UnseenPolicy = "error",
    index_base: int | None = None,
    format: str | None = None,  # noqa: A002
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    dtype: torch.dtype = torch.float64,
) -> TensorEntries:
    """Entries from a file, a folder, a table or an array; nothing is returned unless all of it holds.

    :param source: a path (csv, tsv or tns, gzipped or not; parquet, or a folder of it; a folder of saved entries), a
        table (pandas, polars, Arrow), a sparse array (scipy, pydata/sparse, torch), a dense array with NaN as missing,
        or a pair of indices `[N, K]` and values `[N]`.
    :param value: the column of values.
    :param modes: the columns that are modes, in order; by default all that are nothing else. For sources without
        column names, the names of the modes.
    :param weight: the column of weights.
    :param time: the column of times, for :func:`gptf_gpytorch.data.split_by_time`.
    :param binary: values must be 0 or 1.
    :param shape: the number of entities of each mode, for sources with indices; by default the largest index says it.
    :param duplicates: "error", or what several entries of a cell become: "mean", "sum", "last", or "keep" all.
    :param ids: "string" or "integer", for all modes or by mode. "auto" goes by the type of a column; in text, ids are
        integers if every one of them is written as an integer is ("01" is not), and strings otherwise.
    :param vocabularies: of an earlier reading, so that ids get the same rows.
    :param unseen: for an id that a given vocabulary does not have: "error", or "prior" (row -1, see ``entries.known``).
    :param index_base: modes hold indices that count from 0 or 1, not ids: no vocabulary is made. The default is 1 for
        tns, 0 for arrays, and ids for tables.
    :param format: csv, tsv, tns or parquet, where the name of the file does not say it.
    :param columns: the names of the columns of a csv or tsv file without a header.
    :param delimiter: of a csv file, if it is not the comma.
    :param dtype: of values and weights.
    """
    request = Request(
        value=value,
        modes=None if modes is None else (modes if isinstance(modes, str) else tuple(modes)),  # type: ignore[arg-type]
        weight=weight,
        time=time,
        binary=binary,
        shape=None if shape is None else tuple(shape),
        duplicates=duplicates,
        ids=ids,
        vocabularies=vocabularies or {},
        unseen=unseen,
        index_base=index_base,
        dtype=dtype,
    )
    if isinstance(source, str | os.PathLike):
        return _read_path(Path(source), request, format, columns, delimiter)
    if format is not None or columns is not None or delimiter is not None:
        raise InputError(f"format, columns and delimiter are for files. Got {type(source).__name__}.")
    if hasattr(source, "__arrow_c_stream__"):
        return read_table(source, request)
    found = read_array(source, request)
    if found is None:
        raise InputError(
            "A source must be a path, a table (pandas, polars, Arrow), a sparse or dense array, or a pair (indices, values). "
            f"Got {type(source).__module__}.{type(source).__qualname__}."
        )
    return found


def _read_path(
    path: Path, request: Request, kind: str | None, columns: Sequence[str] | None, delimiter: str | None
) -> TensorEntries:
    if not path.exists():
        raise DataError(f"A file or folder must exist. Got {path}.")
    if path.is_dir():
        if (path / MANIFEST).exists():
            if request != Request():
                raise InputError(f"Saved entries are loaded as they are, without options. Got options for {path}.")
            return TensorEntries.load(path)
        return read_parquet(path, request)
    kind = kind or _kind(path)
    if kind not in FORMATS:
        raise InputError(
            f"The format must be one of {', '.join(sorted(set(FORMATS.values())))}, by the name of the file or as given. "
            f"Got {kind!r} for {path}."
        )
    if (columns is not None or delimiter is not None) and kind not in ("csv", "tsv"):
        raise InputError(f"columns and delimiter are for csv and tsv. Got {path}.")
    if FORMATS[kind] == "parquet":
        return read_parquet(path, request)
    if kind == "tns":
        base = 1 if request.index_base is None else request.index_base
        return read_spaced(path, replace(request, index_base=base))
    return read_separated(path, request, delimiter or ("\t" if kind == "tsv" else ","), columns)


def _kind(path: Path) -> str:
    """The format by the name of a file, without .gz."""
    name = path.name.lower().removesuffix(".gz")
    return name.rpartition(".")[2]


__all__ = ["read"]
