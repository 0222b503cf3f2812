"""Data larger than one machine: each worker reads its share of parquet files, and all agree on vocabularies.

Whatever a worker finds wrong is told to all before anyone goes on, so that all of them raise the same error.
"""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gptf_gpytorch.data import duplicates
from gptf_gpytorch.data.cells import CellKeys, Keys
from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.data.readers.collect import Parts, note_single
from gptf_gpytorch.data.readers.request import Request, Source
from gptf_gpytorch.data.readers.rows import EntityRows
from gptf_gpytorch.data.readers.tables import Parquet
from gptf_gpytorch.data.vocabulary import Vocabulary
from gptf_gpytorch.distributed.communicator import Communicator
from gptf_gpytorch.distributed.verdicts import together
from gptf_gpytorch.errors import DataError, InputError
from gptf_gpytorch.wording import option

_ROUND = 2**23  # cells of all workers that are compared at once


def read_shard(path: str | Path, communicator: Communicator, **options: Any) -> TensorEntries:
    """This worker's entries of a parquet file or a folder of them.

    Row groups are dealt out in order, by the number of rows, so that the shards in the order of ranks are what
    :func:`gptf_gpytorch.data.read` gives. Vocabularies and shape are those of all files, the same on every worker.
    A collective: all workers call it.

    :param options: those of :func:`gptf_gpytorch.data.read`. ``duplicates`` is "error", looked for over all workers, or
        "keep".
    """
    request = together(communicator, lambda: _request(options))
    table = together(communicator, lambda: Parquet(Path(path), request))
    mine = _share(table, communicator)
    before = table.groups.index(mine[0]) if mine else 0
    start = sum(rows for _, _, rows in table.groups[:before])
    source = Source(str(path), lambda row: table.place(start + row))
    with closing(Parts(request, table.chosen, source)) as parts:

        def take() -> tuple[list[EntityRows], list[Vocabulary | int]]:
            parts.check_any(table.count)
            for block in table.blocks(mine):
                parts.add(block)
            return parts.finish()

        rows, sizes = together(communicator, take)
        for mode in range(len(sizes)):
            given = request.vocabulary(mode, table.chosen.modes[mode])
            rows[mode], sizes[mode] = (rows[mode], given) if given else _agreed(communicator, rows[mode], sizes[mode])
        entries = together(communicator, lambda: parts.entries(rows, sizes))
    if request.duplicates == "error":
        together(communicator, lambda: duplicates.resolve(entries, "error", where=source.place))
        _check_duplicates(entries, communicator, source)
    if communicator.rank == 0:
        note_single(entries, str(path))
    return entries


def _request(options: dict[str, Any]) -> Request:
    duplicates.check_policy(options.get("duplicates", "error"), ("error", "keep"))
    try:
        return Request(**options)
    except TypeError as error:
        raise InputError(f"Options must be those of read() for tables. Got {', '.join(options)}.") from error


def _share(table: Parquet, communicator: Communicator) -> list[tuple[Path, int, int]]:
    """The row groups whose middle lies within this worker's part of the rows."""
    mine, start = [], 0
    for group in table.groups:
        rows = group[2]
        owner = min((2 * start + rows) * communicator.size // max(2 * table.count, 1), communicator.size - 1)
        if owner == communicator.rank:
            mine.append(group)
        start += rows
    return mine


def _agreed(
    communicator: Communicator, rows: EntityRows, size: Vocabulary | int
) -> tuple[EntityRows, Vocabulary | int]:
    """The vocabulary, or the size, of a mode on all workers, and this worker's rows in it."""
    if isinstance(size, int):
        found = [int(part) for part in communicator.gather_bytes(str(size).encode())]
        return rows, max(found)
    parts = [_ids(part) for part in communicator.gather_bytes(_bytes(size.ids))]
    union = Vocabulary.sorted(*parts)
    return rows.then(union.encode(size.ids).numpy()), union


def _bytes(ids: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"id": ids})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _ids(payload: bytes) -> pa.Array:
    return pa.ipc.open_stream(payload).read_all().column("id").combine_chunks()


def _check_duplicates(entries: TensorEntries, communicator: Communicator, source: Source) -> None:
    """Cells that two workers have. Keys are compared by their remainder, a part at a time, so that memory is bounded."""
    cells = CellKeys(entries.shape)
    keys = np.sort(cells.of(entries.indices[entries.known]))
    counts = [int(count) for count in communicator.gather_bytes(str(len(keys)).encode())]
    rounds = -(-sum(counts) // _ROUND)
    bucket = _bucket(keys, max(rounds, 1))
    surplus, first = 0, keys[:0]
    for turn in range(rounds):
        found = communicator.gather_bytes(np.ascontiguousarray(keys[bucket == turn]).tobytes())
        everyone = np.sort(np.concatenate([np.frombuffer(part, dtype=keys.dtype) for part in found]))
        again = everyone[1:][everyone[1:] == everyone[:-1]]
        surplus += len(again)
        first = np.unique(np.concatenate([first, again]))[:3]
    if surplus:
        raise DataError(_complaint(entries, cells, first, surplus, communicator, source))


def _bucket(keys: Keys, rounds: int) -> Keys:
    whole = keys.view(">i8").reshape(len(keys), -1) if keys.dtype.kind == "S" else keys[:, None]
    return np.asarray((whole.astype(np.int64) % rounds).sum(axis=1) % rounds)


def _complaint(
    entries: TensorEntries,
    cells: CellKeys,
    first: Keys,
    surplus: int,
    communicator: Communicator,
    source: Source,
) -> str:
    mine = cells.of(entries.indices)
    places = [[source.place(int(row)) for row in np.flatnonzero(mine == key)[:2]] for key in first]
    everyone = [json.loads(part) for part in communicator.gather_bytes(json.dumps(places).encode())]
    shown = []
    for number, cell in enumerate(cells.indices(first)):
        ids = [row if v is None else v[int(row)] for row, v in zip(cell.tolist(), entries.vocabularies, strict=True)]
        named = ", ".join(f"{name}={item!r}" for name, item in zip(entries.names, ids, strict=True))
        shown.append(f"({named}) at {' and '.join(place for worker in everyone for place in worker[number])}")
    return (
        f"Each cell must have one entry, or {option('duplicates', 'keep')} must say that several are meant. "
        f"Got {surplus} more entries than cells: {'; '.join(shown)}{'; ...' if surplus > len(shown) else ''}."
    )
