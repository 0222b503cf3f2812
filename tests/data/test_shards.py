"""Workers that each read a share of parquet files: together they have what one process reads, or the same error."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workers import ThreadCommunicator, Workers

from gptf_gpytorch import DataError, InputError, SingleProcess, TensorEntries, Vocabulary, WorkerError, read
from gptf_gpytorch.data import read_shard
from gptf_gpytorch.data.readers import shards, tables


def write(folder: Path, frame: pd.DataFrame, cuts: list[int], rows: int = 10) -> Path:
    folder.mkdir()
    for number, (start, stop) in enumerate(zip([0, *cuts], [*cuts, len(frame)], strict=True)):
        part = pa.Table.from_pandas(frame[start:stop], preserve_index=False)
        pyarrow.parquet.write_table(part, folder / f"part-{number:03}.parquet", row_group_size=rows)
    return folder


def clicks(n: int = 100, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    cells = rng.permutation(40 * 30)[:n]
    users = [f"user-{cell // 30}" for cell in cells]
    return pd.DataFrame({"user": users, "ad": cells % 30 * 7, "value": rng.normal(size=n)})


def both(size: int, path: Path, **options: object) -> list[TensorEntries]:
    return Workers(size).run(lambda communicator: read_shard(path, communicator, **options))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("cuts", [[], [1, 2], [50], [20, 20, 99]], ids=str)
def test_shards_are_what_one_process_reads(tmp_path: Path, size: int, cuts: list[int]) -> None:
    path = write(tmp_path / "parts", clicks(), cuts)
    found = both(size, path)
    assert TensorEntries.concat(found) == read(path)
    assert all(part.shape == found[0].shape and part.vocabularies == found[0].vocabularies for part in found)


def test_each_worker_reads_only_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "parts", clicks(), [25, 50, 75], rows=25)
    touched: list[str] = []
    original = tables.Parquet.blocks
    monkeypatch.setattr(
        tables.Parquet,
        "blocks",
        lambda self, groups: touched.append([file.name for file, _, _ in groups]) or original(self, groups),
    )
    found = both(2, path)
    assert sorted(touched) == [["part-000.parquet", "part-001.parquet"], ["part-002.parquet", "part-003.parquet"]]
    assert [len(part) for part in found] == [50, 50]


def test_one_file_is_shared_by_row_groups_and_idle_workers_agree(tmp_path: Path) -> None:
    path = tmp_path / "one.parquet"
    clicks(30).to_parquet(path, row_group_size=10)
    found = both(5, path)
    assert sorted(map(len, found)) == [0, 0, 10, 10, 10]
    assert TensorEntries.concat(found) == read(path)


def test_indices_without_vocabularies(tmp_path: Path) -> None:
    path = write(tmp_path / "parts", clicks()[["ad", "value"]].drop_duplicates("ad"), [5], rows=5)
    found = both(2, path, index_base=0)
    assert found[0].shape == found[1].shape == (29 * 7 + 1,)
    assert TensorEntries.concat(found) == read(path, index_base=0)


def test_given_vocabularies_weights_and_times(tmp_path: Path) -> None:
    frame = clicks().assign(w=1.5, t=np.arange(100))
    path = write(tmp_path / "parts", frame, [60])
    options = {
        "vocabularies": {"user": Vocabulary([f"user-{n}" for n in range(0, 40, 2)])},
        "unseen": "prior",
        "weight": "w",
        "time": "t",
    }
    found = both(3, path, **options)
    assert TensorEntries.concat(found) == read(path, **options)
    assert not found[0].known.all()


@settings(max_examples=15)
@given(st.integers(1, 4), st.integers(1, 60), st.integers(1, 20), st.integers(0, 9))
def test_any_folder_on_any_number_of_workers(size: int, n: int, rows: int, seed: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        cuts = sorted(np.random.default_rng(seed).integers(0, n + 1, size=2).tolist())
        path = write(Path(folder) / "parts", clicks(n, seed).assign(other=np.arange(n)), cuts, rows)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.warn", lambda *_, **__: None)  # a mode may have one entity
            assert TensorEntries.concat(both(size, path)) == read(path)


def errors(size: int, path: Path, **options: object) -> list[str]:
    def job(communicator: ThreadCommunicator) -> tuple[type, str]:
        with pytest.raises((InputError, WorkerError)) as caught:
            read_shard(path, communicator, **options)
        return type(caught.value), str(caught.value)

    found = Workers(size).run(job)
    assert len(set(found)) == 1, found
    return found[0][1]


def test_bad_data_on_one_worker_is_the_same_error_on_all(tmp_path: Path) -> None:
    frame = clicks()
    frame.loc[77, "value"] = np.inf
    path = write(tmp_path / "parts", frame, [50])
    assert errors(3, path).startswith(
        "Worker 2: Values must be finite numbers. Got inf in column 'value' at row 27 of "
    )
    assert "part-001.parquet" in errors(2, path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value": "val"}, "Column 'val' must be in"),
        ({"binary": True}, "Labels must be 0 or 1"),
        ({"duplicates": "mean"}, "duplicates must be one of error, keep. Got 'mean'"),
        ({"nonsense": 1}, "Options must be those of read"),
        ({"vocabularies": {"user": Vocabulary(["user-1"])}}, "Ids must be among the 1 of the vocabulary"),
        ({"index_base": 1, "shape": (3, 3)}, "Indices must be integers"),
    ],
)
def test_other_errors_are_shared_too(tmp_path: Path, options: dict, message: str) -> None:
    assert message in errors(2, write(tmp_path / "parts", clicks(), [50]), **options)


def test_a_file_that_breaks_while_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "parts", clicks(), [50])
    file = path / "part-001.parquet"
    content = bytearray(file.read_bytes())
    content[4:200] = bytes(196)
    file.write_bytes(content)
    assert "part-001.parquet" in errors(2, path)


@pytest.mark.parametrize("huge", [False, True], ids=["", "huge"])
def test_duplicates_on_two_workers_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, huge: bool) -> None:
    monkeypatch.setattr(shards, "_ROUND", 7)  # several rounds
    frame = clicks()
    if huge:
        frame["ad"] += 2**40
        frame["user"] = frame["user"].str.removeprefix("user-").astype(int) + 2**40
    frame.loc[90, ["user", "ad"]] = frame.loc[3, ["user", "ad"]]
    frame.loc[91, ["user", "ad"]] = frame.loc[3, ["user", "ad"]]
    path = write(tmp_path / "parts", frame, [50])
    options = {"index_base": 0} if huge else {}
    message = errors(3, path, **options)
    assert "Got 1 more entries than cells" in message  # those of one worker are found first
    frame = frame.drop(index=91)
    path = write(tmp_path / "fewer", frame, [50])
    message = errors(3, path, **options)
    assert "Got 1 more entries than cells" in message
    assert f"user={frame.loc[3, 'user']!r}" in message.replace("np.int64(", "").replace(")", "") or huge
    assert "at row 3 of" in message
    assert "part-000.parquet and row 40 of" in message
    assert len(TensorEntries.concat(both(3, path, duplicates="keep", **options))) == 99


def test_gathered_bytes_arrive_unchanged() -> None:
    payloads = [b"", bytes(range(256)), b"\0\xff", b"x" * 10_000]
    for found in Workers(4).run(lambda communicator: communicator.gather_bytes(payloads[communicator.rank])):
        assert found == payloads
    assert SingleProcess().gather_bytes(b"abc") == [b"abc"]


def test_an_unexpected_failure_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "parts", clicks(), [50])

    def broken(*_: object) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(tables.Parquet, "blocks", broken)
    assert "MemoryError: no memory" in errors(2, path)


def test_a_folder_without_parquet(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="without either"):
        read_shard(tmp_path, SingleProcess())
