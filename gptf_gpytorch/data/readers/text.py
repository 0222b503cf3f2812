"""csv, tsv and FROSTT's tns, gzipped or not: streamed by Arrow; what Arrow refuses gets the careful pass."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.csv

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.data.readers import lines
from gptf_gpytorch.data.readers.collect import collect
from gptf_gpytorch.data.readers.request import Chosen, Request, Source
from gptf_gpytorch.errors import DataError

_SEGMENT = 2**25  # bytes of a file that are read together
_REFUSED = (pa.ArrowInvalid, pa.ArrowKeyError, OSError, EOFError, UnicodeDecodeError)


def read_separated(path: Path, request: Request, delimiter: str, columns: Sequence[str] | None) -> TensorEntries:
    """A csv or tsv file.

    :param columns: names for the columns of a file whose first line is an entry already.
    """
    records = partial(lines.separated, path, delimiter)
    first = next(records(), None)
    if first is None:
        raise DataError(f"There must be at least one entry. Got an empty file, {path}.")
    header = columns is None
    names = first[1] if columns is None else list(columns)
    source = Source(str(path), lines.place(records, path, skip=int(header)))
    chosen = request.choose(names, source)

    def blocks(newlines: bool) -> Iterator[pa.RecordBatch]:
        parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=newlines)
        convert = _types(request, chosen)
        if newlines or lines.compressed(path):  # one block after the other
            options = pyarrow.csv.ReadOptions(block_size=lines.LONGEST_LINE, column_names=None if header else names)
            with pyarrow.csv.open_csv(path, options, parse, convert) as reader:
                yield from reader
        else:
            yield from _segments(path, names, header, parse, convert)

    return _collected(blocks, records, names, request, chosen, source, skip=int(header))


def read_spaced(path: Path, request: Request) -> TensorEntries:
    """A tns file: white space between the indices and the value, `#` before a comment, no header."""
    records = partial(lines.spaced, path)
    first = next(records(), None)
    if first is None:
        raise DataError(f"There must be at least one entry. Got an empty file, {path}.")
    modes = len(first[1]) - 1
    named = request.modes or tuple(f"mode_{mode}" for mode in range(modes))
    source = Source(str(path), lines.place(records, path, skip=0))
    if len(named) != modes or modes < 1:
        raise DataError(
            f"A line must have an index for each of the modes {named} and a value. "
            f"Got {modes + 1} numbers at line {first[0]} of {path}."
        )
    chosen = request.choose([*named, request.value], source)

    def blocks(newlines: bool) -> Iterator[pa.RecordBatch]:
        with lines.open_bytes(path) as file:
            reader = pyarrow.csv.open_csv(
                _OneSpace(file),
                read_options=pyarrow.csv.ReadOptions(
                    block_size=lines.LONGEST_LINE, column_names=[*named, request.value], use_threads=True
                ),
                parse_options=pyarrow.csv.ParseOptions(delimiter=" ", quote_char=False),
                convert_options=_types(request, chosen),
            )
            with reader:
                yield from reader

    return _collected(blocks, records, [*named, request.value], request, chosen, source, skip=0)


def _collected(
    blocks: Callable[[bool], Iterator[pa.RecordBatch]],
    records: Callable[[], Iterator[lines.Record]],
    names: Sequence[str],
    request: Request,
    chosen: Chosen,
    source: Source,
    skip: int,
) -> TensorEntries:
    for newlines in (False, True):
        try:
            return collect(blocks(newlines), request, chosen, source, text=True)
        except _REFUSED as error:
            refused = str(error)
        # Raises for what is wrong. If nothing is, a column that is not read may hold newlines: once more, with care.
        lines.examine(records(), names, chosen, request, source, skip)
    raise DataError(f"{source.name} must be text in columns. Got: {refused}")


def _segments(
    path: Path,
    names: Sequence[str],
    header: bool,
    parse: pyarrow.csv.ParseOptions,
    convert: pyarrow.csv.ConvertOptions,
) -> Iterator[pa.RecordBatch]:
    """The blocks of a file whose records each end with a line, many at a time: Arrow's stream would use one core."""
    with pa.memory_map(str(path)) as file:
        start, size = 0, file.size()
        while start < size:
            file.seek(start)
            segment = file.read_buffer(_SEGMENT)
            if start + len(segment) < size:
                end = segment.slice(max(len(segment) - lines.LONGEST_LINE, 0))
                whole = len(segment) - len(end) + end.to_pybytes().rfind(b"\n") + 1
                if whole <= len(segment) - len(end):
                    raise pa.ArrowInvalid("a line is too long")
                segment = segment.slice(0, whole)
            named = None if header and not start else names
            options = pyarrow.csv.ReadOptions(block_size=lines.LONGEST_LINE, column_names=named)
            yield from pyarrow.csv.read_csv(pa.BufferReader(segment), options, parse, convert).to_batches()
            start += len(segment)


def _types(request: Request, chosen: Chosen) -> pyarrow.csv.ConvertOptions:
    types = {chosen.value: pa.float64()}
    if chosen.weight:
        types[chosen.weight] = pa.float64()
    for mode, name in enumerate(chosen.modes):
        indices = request.index_base is not None and request.vocabulary(mode, name) is None
        types[name] = pa.int64() if indices else pa.string()
    # No text stands for a missing value: an empty field is refused, and "NA" is an id like any other.
    return pyarrow.csv.ConvertOptions(
        column_types=types, include_columns=list(chosen.all), null_values=[], strings_can_be_null=False
    )


class _OneSpace(io.RawIOBase):
    """Text with one space between fields, and without comments and the space around lines."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._rest, self._ready = file, b"", b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes, as many as are ready but no more than asked for."""
        while not self._ready:
            block = self._file.read(2**20)
            if not block:
                self._ready, self._rest = tidy(self._rest), b""
                break
            whole, newline, rest = block.rpartition(b"\n")
            if not newline:
                self._rest += block
                if len(self._rest) > 2 * lines.LONGEST_LINE:
                    raise pa.ArrowInvalid("a line is too long")
                continue
            self._ready, self._rest = tidy(self._rest + whole + newline), rest
        size = len(self._ready) if size < 0 else size
        given, self._ready = self._ready[:size], self._ready[size:]
        return given


_SPACE = re.compile(rb"[ \t\r\f\v]+")
_AROUND = re.compile(rb"^ +| +$", re.MULTILINE)
_COMMENT = re.compile(rb"#[^\n]*")


def tidy(text: bytes) -> bytes:
    """One space between fields, none around lines, no comments. Most files are like that already."""
    if b"#" in text:
        text = _COMMENT.sub(b"", text)
    if any(mark in text for mark in (b"\t", b"\r", b"  ", b"\f", b"\v")):
        text = _SPACE.sub(b" ", text)
    if b" \n" in text or b"\n " in text or text[:1] == b" " or text[-1:] == b" ":
        text = _AROUND.sub(b"", text)
    return text
