"""Files and tables in a user's ids, as a fitted model's rows: whole with values, or block by block without."""

import difflib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from torch import Tensor

from gptf_gpytorch.data.entries import MANIFEST, TensorEntries
from gptf_gpytorch.data.readers import lines, read
from gptf_gpytorch.data.readers.ids import IdColumn
from gptf_gpytorch.data.readers.numbers import IndexColumn
from gptf_gpytorch.data.readers.request import Chosen, Request, Source
from gptf_gpytorch.data.readers.tables import open_stream, parquet_files
from gptf_gpytorch.data.vocabulary import UnseenPolicy, check_unseen
from gptf_gpytorch.errors import DataError, DataWarning, InputError
from gptf_gpytorch.training.saved import FittedModel
from gptf_gpytorch.wording import option

BATCH = 2**17


def read_entries(
    fitted: FittedModel,
    source: Any,
    *,
    value: str | None = None,
    unseen: UnseenPolicy | Literal["new"] = "error",
    index_base: int | None = None,
    **options: Any,
) -> TensorEntries:
    """Entries with values, read so that a fitted model understands them.

    :param source: what :func:`gptf_gpytorch.read` takes, with the model's modes.
    :param value: the column of values; the model's by default.
    :param unseen: for an entity that the model does not know: "error"; "prior" (row -1); or "new", which keeps the
        source's own ids for :func:`gptf_gpytorch.serving.fold_in.fold_in`.
    :param index_base: what indices of modes without ids count from: by default 1 in tns, else 0.
    :param options: more of :func:`gptf_gpytorch.read`: ``duplicates``, ``weight``, ``format``, ...

    Example:
        >>> rows = pa.table({"user": ["u01"], "ad": ["a02"], "page": ["p03"], "value": [1.5]})
        >>> read_entries(fitted, rows).indices
        tensor([[1, 2, 3]], dtype=torch.int32)

    """
    if unseen != "new":
        check_unseen(unseen)
    path = Path(source) if isinstance(source, str | PathLike) else None
    if path is not None and (path / MANIFEST).exists():
        saved = TensorEntries.load(path)
        entries = read_entries(fitted, _table(saved), value="value", unseen=unseen, duplicates="keep", **options)
        return replace(entries, weights=saved.weights, times=saved.times)
    with_ids = {name: v for name, v in zip(fitted.mode_names, fitted.vocabularies, strict=True) if v is not None}
    plain = len(with_ids) < len(fitted.shape)
    kind = str(options.get("format") or ("" if path is None else path.name)).lower().removesuffix(".gz")
    if plain and index_base is None and not kind.endswith("tns"):
        index_base = 0
    with warnings.catch_warnings():
        # A mode of one entity was noted in training; in a few entries of a new entity it is what one expects.
        warnings.filterwarnings("ignore", r"Mode .* has one entity", DataWarning)
        entries = read(
            source,
            value=fitted.value_name if value is None else value,
            modes=fitted.mode_names,
            binary=fitted.binary,
            ids={name: vocabulary.kind for name, vocabulary in with_ids.items()},
            vocabularies={} if unseen == "new" else with_ids,
            unseen="prior" if unseen == "prior" else "error",
            index_base=index_base if plain else None,
            **options,
        )
    return entries if unseen == "new" else _within(fitted, entries)


def _within(fitted: FittedModel, entries: TensorEntries) -> TensorEntries:
    """Entries in the shape of the model: an index beyond it is an entity that the model does not know."""
    if entries.shape == fitted.shape:
        return entries
    indices = entries.indices.clone()
    for mode, size in enumerate(fitted.shape):
        beyond = indices[:, mode] >= size
        if entries.unseen == "error" and bool(beyond.any()):
            row = int(beyond.nonzero()[0])
            raise DataError(
                f"Indices of mode {fitted.mode_names[mode]!r} must lie in [0, {size}), as in training (or pass "
                f"{option('unseen', 'prior')}). Got {int(indices[row, mode])}, counted from 0, at entry {row}."
            )
        indices[beyond, mode] = -1
    return replace(entries, indices=indices, shape=fitted.shape)


@dataclass(frozen=True)
class Rows:
    """The rows of a table to predict, in blocks of at most :data:`BATCH`, every column as it came.

    :param text: ids have no type of their own, so that those which read as integers may be integers.
    :param base: what indices of modes without ids count from.
    """

    schema: pa.Schema
    blocks: Iterable[pa.RecordBatch]
    source: Source
    text: bool
    base: int

    def encoded(self, fitted: FittedModel, unseen: UnseenPolicy = "error") -> Iterator[tuple[pa.RecordBatch, Tensor]]:
        """Each block with its indices `[n, K]` in the model's rows, -1 for an entity that it does not know."""
        check_unseen(unseen)
        start = 0
        for block in self.blocks:
            if not block.num_rows:
                continue
            shifted = Source(self.source.name, lambda row, start=start: self.source.place(start + row))  # type: ignore[misc]
            columns = [self._encode(fitted, mode, block, shifted, unseen) for mode in range(len(fitted.shape))]
            yield block, torch.from_numpy(np.stack(columns, axis=1))
            start += block.num_rows

    def _encode(
        self, fitted: FittedModel, mode: int, block: pa.RecordBatch, source: Source, unseen: UnseenPolicy
    ) -> np.ndarray[Any, Any]:
        name, size, vocabulary = fitted.mode_names[mode], fitted.shape[mode], fitted.vocabularies[mode]
        if vocabulary is None:
            indices = IndexColumn(name, source, self.base, size if unseen == "error" else None)
            indices.add(block.column(name))
            rows = indices.finish()[0].whole()
            return np.where(rows < size, rows, -1)
        with closing(IdColumn(name, source, vocabulary.kind, text=self.text)) as column:
            column.add(block.column(name))
            codes, found = column.finish()
        table = vocabulary.encode(found.ids, unseen="prior").numpy()
        unknown = codes.first(table < 0) if unseen == "error" else None
        if unknown is not None:
            rule = (
                f"Ids must be among the {len(vocabulary):,} that the model knows (or pass {option('unseen', 'prior')})."
            )
            raise source.complain(rule, found[codes.at(unknown)], name, unknown)
        return codes.then(table).whole()


def read_indices(fitted: FittedModel, source: Any) -> Tensor:
    """The indices `[n, K]` of a source's rows, which need no values; -1 for an entity that the model does not know.

    Example:
        >>> read_indices(fitted, pa.table({"user": ["u01"], "ad": ["a02"], "page": ["nowhere"]})).tolist()
        [[1, 2, -1]]

    """
    found = [indices for _, indices in open_rows(fitted, source, typed=False).encoded(fitted, "prior")]
    return torch.cat(found) if found else torch.empty((0, len(fitted.shape)), dtype=torch.int64)


def open_rows(fitted: FittedModel, source: Any, *, index_base: int | None = None, typed: bool = True) -> Rows:
    """The rows of a source with the model's modes, with or without values.

    :param source: a path (csv or tsv, gzipped or not; parquet, or a folder of it; tns; saved entries), a table (pandas,
        polars, Arrow), or entries.
    :param typed: whether the values of a text file become numbers; if not, they stay the text that they are.
    """
    if index_base not in (None, 0, 1):
        raise InputError(f"index_base must be 0 or 1. Got {index_base!r}.")
    if isinstance(source, str | PathLike):
        path = Path(source)
        name = path.name.lower().removesuffix(".gz")
        if not path.exists():
            raise DataError(f"A file or folder must exist. Got {path}.")
        if (path / MANIFEST).exists():
            source = TensorEntries.load(path)
        elif name.endswith((".csv", ".tsv")):
            return _separated(fitted, path, "\t" if name.endswith(".tsv") else ",", index_base or 0, typed)
        elif path.is_dir() or name.endswith((".parquet", ".pq")):
            return _parquet(fitted, path, index_base or 0)
        elif name.endswith(".tns"):
            index_base = 1 if index_base is None else index_base
            entries = read(path, modes=fitted.mode_names, index_base=index_base, duplicates="keep")
            return _tabled(fitted, _table(entries, index_base), str(path), index_base)
        else:
            raise InputError(f"Rows to predict must be csv, tsv, tns or parquet. Got {path}.")
    if isinstance(source, TensorEntries):
        return _tabled(fitted, _table(source), "the entries", 0)
    if not hasattr(source, "__arrow_c_stream__"):
        raise InputError(f"Rows to predict must be a path, a table or entries. Got {type(source).__name__}.")
    return _tabled(fitted, source, f"the {type(source).__name__}", index_base or 0)


def _tabled(fitted: FittedModel, table: Any, name: str, base: int) -> Rows:
    reader = open_stream(table, name)
    _check_columns(fitted, reader.schema.names, name)
    blocks = (block.slice(start, BATCH) for block in reader for start in range(0, block.num_rows, BATCH))
    return Rows(reader.schema, blocks, Source(name, lambda row: f"row {row} of {name}"), False, base)


def _parquet(fitted: FittedModel, path: Path, base: int) -> Rows:
    files = parquet_files(path) if path.is_dir() else [path]
    try:
        schemas = [pyarrow.parquet.read_schema(file) for file in files]
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"A parquet file must be whole. Got {path}: {error}.") from error
    for file, schema in zip(files, schemas, strict=True):
        _check_columns(fitted, schema.names, str(file))
        if not schema.equals(schemas[0]):
            raise DataError(f"Every file must have the columns of {files[0]}, of the same types. Got others in {file}.")

    def blocks() -> Iterator[pa.RecordBatch]:
        try:
            for file in files:
                with pyarrow.parquet.ParquetFile(file) as opened:
                    yield from opened.iter_batches(batch_size=BATCH)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"A parquet file must be whole. Got {path}: {error}.") from error

    return Rows(schemas[0], blocks(), Source(str(path), lambda row: f"row {row} of {path}"), False, base)


def _separated(fitted: FittedModel, path: Path, delimiter: str, base: int, typed: bool) -> Rows:
    records = partial(lines.separated, path, delimiter)
    first = next(records(), None)
    if first is None:
        raise DataError(f"There must be a line with the names of the columns. Got an empty file, {path}.")
    names = first[1]
    _check_columns(fitted, names, str(path))
    types = dict.fromkeys(names, pa.string())
    if typed and fitted.value_name in names:
        types[fitted.value_name] = pa.float64()
    for name, vocabulary in zip(fitted.mode_names, fitted.vocabularies, strict=True):
        if vocabulary is None:
            types[name] = pa.int64()
    source = Source(str(path), lines.place(records, path, skip=1))

    def blocks() -> Iterator[pa.RecordBatch]:
        try:
            with pyarrow.csv.open_csv(
                path,
                read_options=pyarrow.csv.ReadOptions(block_size=lines.LONGEST_LINE),
                # Columns that are only passed on may hold anything.
                parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types=types, null_values=[""], strings_can_be_null=False
                ),
            ) as reader:
                for block in reader:
                    yield from (block.slice(start, BATCH) for start in range(0, block.num_rows, BATCH))
        except (pa.ArrowInvalid, pa.ArrowKeyError, OSError, EOFError, UnicodeDecodeError) as error:
            plain = 0 if any(vocabulary is None for vocabulary in fitted.vocabularies) else None
            with_ids = {n: v for n, v in zip(fitted.mode_names, fitted.vocabularies, strict=True) if v is not None}
            request = Request(modes=fitted.mode_names, vocabularies=with_ids, index_base=plain)
            # Raises for what is wrong, with its line.
            lines.examine(records(), names, Chosen(fitted.mode_names, "", None, None), request, source, 1)
            raise DataError(f"{path} must be text in columns. Got: {error}") from error

    schema = pa.schema([pa.field(name, types[name]) for name in names])
    return Rows(schema, blocks(), source, True, base)


def _check_columns(fitted: FittedModel, names: Sequence[str], where: str) -> None:
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise DataError(f"Columns must have distinct names. Got {twice!r} more than once in {where}.")
    for mode in fitted.mode_names:
        if mode not in names:
            near = difflib.get_close_matches(mode, names, n=2, cutoff=0.5) or list(names)[:8]
            hint = f"the nearest are {', '.join(map(repr, near))}" if near else "it has no columns"
            raise DataError(f"Column {mode!r} must be in {where}. Got {len(names)} columns; {hint}.")


def _table(entries: TensorEntries, base: int = 0) -> pa.Table:
    """Entries as a table in ids, or in indices that count from a base."""
    if not bool(entries.known.all()):
        raise InputError("Entries to predict must have ids. Got some without: read them with the model's vocabularies.")
    columns = {}
    for mode, (name, vocabulary) in enumerate(zip(entries.names, entries.vocabularies, strict=True)):
        rows = pa.array(entries.indices[:, mode].numpy())
        columns[name] = pa.array(rows.to_numpy() + base) if vocabulary is None else vocabulary.ids.take(rows)
    columns["value"] = pa.array(entries.values.numpy())
    return pa.table(columns)
