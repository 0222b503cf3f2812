"""Tables that have types: Arrow, anything that exports Arrow streams (pandas, polars, ...), and parquet."""

import itertools
import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.data.readers.collect import collect
from gptf_gpytorch.data.readers.request import Chosen, Request, Source
from gptf_gpytorch.data.vocabulary import id_type
from gptf_gpytorch.errors import DataError

_BATCH = 2**18


def read_table(table: Any, request: Request) -> TensorEntries:
    """A table in memory."""
    kind = type(table).__name__
    name = f"the {kind}" if "frame" in kind.lower() else f"the {type(table).__module__.partition('.')[0]} {kind}"
    source = Source(name, lambda row: f"row {row} of {name}")
    reader = open_stream(table, name)
    chosen = request.choose(reader.schema.names, source, left_out=_index_columns(reader.schema))
    return collect((block.select(list(chosen.all)) for block in reader), request, chosen, source)


def open_stream(table: Any, name: str) -> pa.RecordBatchReader:
    """The blocks of a table in memory, or an error that names it."""
    try:
        return pa.RecordBatchReader.from_stream(table)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
        raise DataError(
            f"Columns must each have one type. Got, in {name}: {' '.join(map(str, error.args))}."
        ) from error


class Parquet:
    """Parquet files as one table, row group by row group.

    :param path: a file, or a folder whose `.parquet` files are taken in the order of their names.
    """

    def __init__(self, path: Path, request: Request) -> None:
        self.path = path
        self.files = parquet_files(path) if path.is_dir() else [path]
        opened = [_open(file) for file in self.files]
        self.groups = [
            (file, group, meta.metadata.row_group(group).num_rows)
            for file, meta in zip(self.files, opened, strict=True)
            for group in range(meta.metadata.num_row_groups)
        ]
        self.starts: list[int] = [0, *itertools.accumulate(meta.metadata.num_rows for meta in opened)]
        self.source = Source(str(path), self.place)
        for file, meta in zip(self.files, opened, strict=True):
            schema = meta.schema_arrow
            here = Source(str(file), self.place)
            chosen = request.choose(schema.names, here, left_out=_index_columns(schema))
            if file is self.files[0]:
                self.chosen, self._first = chosen, schema
            self._agree(chosen, schema, file)
        for meta in opened:
            meta.close()

    def _agree(self, chosen: Chosen, schema: pa.Schema, file: Path) -> None:
        """Every file must have the columns of the first, of the same kind."""
        if set(chosen.all) != set(self.chosen.all):
            raise DataError(
                f"Every file must have the columns {', '.join(self.chosen.all)} of {self.files[0]}. "
                f"Got {', '.join(chosen.all)} in {file}."
            )
        for name in chosen.modes:
            mine, first = id_type(schema.field(name).type), id_type(self._first.field(name).type)
            if mine != first:
                raise DataError(
                    f"Column {name!r} must be {self._first.field(name).type} in every file, as in {self.files[0]}. "
                    f"Got {schema.field(name).type} in {file}."
                )

    @property
    def count(self) -> int:
        """The number of rows of all files."""
        return self.starts[-1]

    def place(self, row: int) -> str:
        """Words for the position of an entry: its row in its file."""
        file = min(bisect_right(self.starts, row), len(self.files)) - 1
        return f"row {row - self.starts[file]} of {self.files[file]}"

    def blocks(self, groups: Sequence[tuple[Path, int, int]]) -> Iterator[pa.RecordBatch]:
        """The rows of row groups, in order; only the columns that are needed."""
        strings = [name for name in self.chosen.modes if id_type(self._first.field(name).type) == pa.large_string()]
        for path, members in itertools.groupby(groups, key=lambda group: group[0]):
            file = _open(path, read_dictionary=strings)
            try:
                wanted = [group for _, group, _ in members]
                yield from file.iter_batches(batch_size=_BATCH, row_groups=wanted, columns=list(self.chosen.all))
            except (pa.ArrowInvalid, OSError) as error:
                raise DataError(f"A parquet file must be whole. Got {path}: {error}.") from error
            finally:
                file.close()


def read_parquet(path: Path, request: Request) -> TensorEntries:
    """A parquet file, or a folder of them."""
    table = Parquet(path, request)
    return collect(table.blocks(table.groups), request, table.chosen, table.source)


def parquet_files(folder: Path) -> list[Path]:
    """The parquet files of a folder, by name."""
    found = sorted(file for file in folder.iterdir() if file.suffix.lower() in (".parquet", ".pq"))
    if not found:
        raise DataError(f"A folder must hold .parquet files, or saved entries. Got {folder} without either.")
    return found


def _open(path: Path, **options: Any) -> pyarrow.parquet.ParquetFile:
    try:
        return pyarrow.parquet.ParquetFile(path, **options)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"A parquet file must be whole. Got {path}: {error}.") from error


def _index_columns(schema: pa.Schema) -> list[str]:
    """The columns that are the index of a pandas DataFrame: labels of rows, not modes."""
    try:
        index = json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
    except ValueError:
        return []
    return [name for name in index if isinstance(name, str)]
