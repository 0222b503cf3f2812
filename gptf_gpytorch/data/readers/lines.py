"""The careful pass: text read line by line, to find the exact place of what a fast reader refused."""

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from gptf_gpytorch.data.readers.numbers import reads_as_time
from gptf_gpytorch.data.readers.request import Chosen, Request, Source
from gptf_gpytorch.errors import DataError

LONGEST_LINE = 2**22
_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"-?\d+", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)

Record = tuple[int, list[str]]
"""The number of the line where a record starts, from 1, and its fields."""


def compressed(path: Path) -> bool:
    """Whether a file is gzipped, by its name."""
    return path.suffix.lower() == ".gz"


def open_bytes(path: Path) -> IO[bytes]:
    """The bytes of a file, decompressed."""
    opener: Any = gzip.open if compressed(path) else open
    opened: IO[bytes] = opener(path, "rb")
    return opened


@contextmanager
def readable(path: Path, at: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn what can go wrong with the file itself into an error that names it.

    :param at: how far reading had come.
    """
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"A gzipped file must be whole. Got {path}, which breaks{at()}: {error}.") from error
    except OSError as error:
        raise DataError(f"A file must be readable. Got {path}: {error.strerror or error}.") from error


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Every line with its number, or an error for one that is too long or not UTF-8."""
    number = offset = 0
    with readable(path, lambda: f" after line {number}"), open_bytes(path) as file:
        while raw := file.readline(LONGEST_LINE + 1):
            number += 1
            if len(raw) > LONGEST_LINE:
                raise DataError(
                    f"A line must be at most {LONGEST_LINE:,} bytes long. "
                    f"Got more at line {number} of {path}, which starts with {raw[:40]!r}."
                )
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                within = " of the decompressed text" if compressed(path) else ""
                raise DataError(
                    f"Text must be UTF-8. Got byte 0x{raw[error.start]:02x} at byte offset {offset + error.start}{within}, "
                    f"column {_column(raw[: error.start])} of line {number} of {path}."
                ) from error
            offset += len(raw)
            yield number, text.removeprefix("\ufeff") if number == 1 else text


def separated(path: Path, delimiter: str) -> Iterator[Record]:
    """The records of a csv file, quoted fields with newlines included; empty lines are left out."""
    reached = 0

    def texts() -> Iterator[str]:
        nonlocal reached
        for number, text in lines(path):
            reached = number
            yield text

    reader = csv.reader(texts(), delimiter=delimiter)
    while True:
        start = reached + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise DataError(
                f"Quoted fields must end, and be short. Got: {error}, at line {start} of {path}."
            ) from error
        if fields is None:
            return
        if fields:
            yield start, fields


def spaced(path: Path) -> Iterator[Record]:
    """The records of a file whose fields are separated by any white space; comments and empty lines are left out."""
    for number, text in lines(path):
        if fields := text.partition("#")[0].split():
            yield number, fields


def place(records: Callable[[], Iterator[Record]], path: Path, skip: int) -> Callable[[int], str]:
    """Words for the position of an entry: the number of its line.

    :param skip: how many records are not entries.
    """
    numbered = enumerate(records(), start=-skip)
    reached = -1

    def at(row: int) -> str:
        nonlocal numbered, reached
        if row <= reached:
            numbered = enumerate(records(), start=-skip)
        for reached, (line, _) in numbered:
            if reached == row:
                return f"line {line} of {path}"
        return f"entry {row} of {path}"

    return at


def examine(
    records: Iterator[Record], columns: Sequence[str], chosen: Chosen, request: Request, source: Source, skip: int
) -> None:
    """Raise the error of the first record that breaks a rule; return if there is none."""
    checks: list[tuple[int, str, Callable[[str], str | None]]] = []
    for mode, name in enumerate(chosen.modes):
        indices = request.index_base is not None and request.vocabulary(mode, name) is None
        checks.append((columns.index(name), name, _index_rule if indices else _id_rule))
    checks += [(columns.index(name), name, _number_rule) for name in (chosen.value, chosen.weight) if name]
    if chosen.time:
        checks.append((columns.index(chosen.time), chosen.time, _time_rule))
    for position, (line, fields) in enumerate(records):
        if position < skip:
            continue
        here = Source(source.name, lambda _, line=line: f"line {line} of {source.name}")  # type: ignore[misc]
        if len(fields) != len(columns):
            raise DataError(
                f"A row must have the {len(columns)} columns {', '.join(columns)}. "
                f"Got {len(fields)} at {here.place(0)}, starting with {fields[0][:40]!r}."
            )
        for column, name, check in checks:
            rule = check(fields[column])
            if rule is not None:
                raise here.complain(rule, fields[column], name, 0)


def _number_rule(text: str) -> str | None:
    stripped = text.strip(" \t")
    if _NUMBER.fullmatch(stripped):
        return None
    return "Values must be finite numbers." if _NOT_FINITE.fullmatch(stripped) else "Values must be numbers."


def _index_rule(text: str) -> str | None:
    return None if _INTEGER.fullmatch(text.strip(" \t")) else "Indices must be integers."


def _time_rule(text: str) -> str | None:
    return None if reads_as_time(text) else "Times must be numbers, dates or timestamps."


def _id_rule(text: str) -> str | None:
    if not text:
        return "Ids must not be empty."
    return "Ids must not hold a newline or NUL." if any(mark in text for mark in "\n\r\0") else None


def _column(before: bytes) -> int:
    return len(before.decode("utf-8")) + 1
