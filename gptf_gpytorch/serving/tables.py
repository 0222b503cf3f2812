"""Predictions beside the rows that they are of: as a table, or written to a file block by block."""

import csv
import io
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from gptf_gpytorch.data.storage import flush
from gptf_gpytorch.data.vocabulary import UnseenPolicy
from gptf_gpytorch.errors import DataError, InputError
from gptf_gpytorch.serving.predictions import predict
from gptf_gpytorch.serving.reading import Rows, open_rows
from gptf_gpytorch.training.saved import FittedModel
from gptf_gpytorch.wording import option

WRITTEN = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}


def predict_table(
    fitted: FittedModel,
    source: Any,
    *,
    unseen: UnseenPolicy = "error",
    interval: float = 0.95,
    index_base: int | None = None,
) -> pa.Table:
    """The user's rows with the columns mean, std, probability (for labels), lower and upper; see :func:`predict`.

    :param source: a path (csv or tsv, gzipped or not; parquet, or a folder of it; tns; saved entries), a table (pandas,
        polars, Arrow), or entries, with the model's modes. Values are not needed, and passed on.
    :param unseen: for an entity that the model does not know: "error", or "prior".
    :param interval: the probability that the interval holds.
    :param index_base: of modes without ids: 1 by default for tns, else 0.

    Example:
        >>> rows = pa.table({"user": ["u01"], "ad": ["a02"], "page": ["p03"], "note": ["mine"]})
        >>> predict_table(fitted, rows).column_names
        ['user', 'ad', 'page', 'note', 'mean', 'std', 'lower', 'upper']

    """
    rows = open_rows(fitted, source, index_base=index_base)
    schema = _schema(fitted, rows)
    return pa.Table.from_batches(_predicted(fitted, rows, schema, unseen, interval), schema=schema)


def write_predictions(
    fitted: FittedModel,
    source: Any,
    target: str | Path,
    *,
    unseen: UnseenPolicy = "error",
    interval: float = 0.95,
    index_base: int | None = None,
) -> int:
    """Write what :func:`predict_table` returns to a csv or parquet file, block by block; the number of rows.

    The file appears whole or not at all: it has another name until the last row is on the disk. Memory is that of a few
    blocks, whatever the number of rows.

    :param target: the file, csv or parquet by its name; one that is there is replaced.

    Example:
        >>> write_predictions(fitted, pa.table({"user": ["u01"], "ad": ["a02"], "page": ["p03"]}), folder / "out.csv")
        1

    """
    target = Path(target)
    kind = WRITTEN.get(target.suffix.lower())
    if kind is None:
        raise InputError(f"Predictions must be written to one of {', '.join(WRITTEN)}. Got {target}.")
    if isinstance(source, str | os.PathLike) and target.exists() and target.samefile(source):
        raise InputError(f"{option('output')} must be another file than what is predicted. Got {target} for both.")
    rows = open_rows(fitted, source, index_base=index_base, typed=kind == "parquet")
    schema = _schema(fitted, rows)
    batches = _predicted(fitted, rows, schema, unseen, interval)
    draft = target.with_name(f".{target.name}.{os.getpid()}.draft")
    try:
        count = (_write_parquet if kind == "parquet" else _write_csv)(draft, schema, batches)
        flush(draft)
        draft.replace(target)
    except OSError as error:
        raise DataError(f"Predictions must fit and be writable. Got {target}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):  # it may not even have been begun
            draft.unlink()
    flush(target.absolute().parent)
    return count


def _schema(fitted: FittedModel, rows: Rows) -> pa.Schema:
    names = ["mean", "std", *(["probability"] if fitted.binary else []), "lower", "upper"]
    taken = [name for name in names if name in rows.schema.names]
    if taken:
        raise DataError(
            f"The columns {', '.join(names)} are those of the predictions: other columns must have other names. "
            f"Got {', '.join(map(repr, taken))} in {rows.source.name}."
        )
    fields = [*rows.schema, *(pa.field(name, pa.float64()) for name in names)]
    return pa.schema(fields, metadata=_metadata(rows.schema))


def _metadata(schema: pa.Schema) -> dict[bytes, bytes]:
    """What came with the rows, without pandas' list of columns, which is no longer true."""
    return {key: value for key, value in (schema.metadata or {}).items() if key != b"pandas"}


def _predicted(
    fitted: FittedModel, rows: Rows, schema: pa.Schema, unseen: UnseenPolicy, interval: float
) -> Iterator[pa.RecordBatch]:
    for block, indices in rows.encoded(fitted, unseen):
        columns = predict(fitted, indices, interval=interval).columns().values()
        yield pa.RecordBatch.from_arrays([*block.columns, *(pa.array(c.numpy()) for c in columns)], schema=schema)


def _write_parquet(path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    count = 0
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _write_csv(path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    count = 0
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow(schema.names)
    with path.open("wb") as file:
        file.write(header.getvalue().encode())
        for batch in batches:
            plain = pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns], names=schema.names)
            quoted = any(_needs_quotes(column) for column in plain.columns)
            options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed" if quoted else "none")
            try:
                pyarrow.csv.write_csv(plain, file, options)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise DataError(
                    f"Columns must be of types that csv can hold (parquet holds all). Got: {error}."
                ) from error
            count += batch.num_rows
    return count


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _needs_quotes(column: pa.Array) -> bool:
    """Whether some text holds what separates fields. Arrow would quote all text, or none."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return bool(pa.types.is_binary(column.type) or pa.types.is_string_view(column.type))
    return bool(pc.any(pc.match_substring_regex(column, '[",\r\n]')).as_py())
