"""Tables with types: pandas, polars, Arrow, and parquet files that each of them wrote."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from gptf_gpytorch import DataError, InputError, TensorEntries, read

COLUMNS = {"user": ["ann", "Zoé", "ann", "01"], "ad": [30, 2, 2, 30], "value": [1.5, 0.0, -1.0, 2.0]}
CELLS = list(zip(COLUMNS["user"], COLUMNS["ad"], strict=True))

TABLES: dict[str, Callable[[], object]] = {
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "pandas, objects": lambda: pd.DataFrame(COLUMNS).astype({"user": object}),
    "pandas, categories": lambda: pd.DataFrame(COLUMNS).astype({"user": pd.CategoricalDtype(["zzz", *set(COLUMNS["user"])])}),
    "pandas, filtered": lambda: pd.DataFrame({name: [*items, items[0]] for name, items in COLUMNS.items()}).iloc[[0, 1, 2, 3]],
    "pandas, own index": lambda: pd.DataFrame(COLUMNS, index=pd.Index(list("wxyz"), name="label")),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "polars, categories": lambda: pl.DataFrame(COLUMNS).with_columns(pl.col("user").cast(pl.Categorical)),
    "arrow": lambda: pa.table(COLUMNS),
    "arrow, dictionary": lambda: pa.table({**COLUMNS, "user": pa.array(COLUMNS["user"]).dictionary_encode()}),
    "arrow, large strings": lambda: pa.table({**COLUMNS, "user": pa.array(COLUMNS["user"], pa.large_string())}),
    "arrow, string views": lambda: pa.table({**COLUMNS, "user": pa.array(COLUMNS["user"], pa.string_view())}),
    "arrow, chunks": lambda: pa.concat_tables([pa.table(COLUMNS)[:1], pa.table(COLUMNS)[1:]]),
    "arrow, small integers": lambda: pa.table({**COLUMNS, "ad": pa.array(COLUMNS["ad"], pa.uint8())}),
    "arrow, a reader": lambda: pa.table(COLUMNS).to_reader(max_chunksize=1),
}  # fmt: skip


def check(entries: TensorEntries) -> None:
    assert entries.ids() == CELLS
    assert entries.values.tolist() == COLUMNS["value"]
    assert entries.names == ("user", "ad")
    assert entries.shape == (3, 2)
    assert [list(vocabulary) for vocabulary in entries.vocabularies] == [["01", "Zoé", "ann"], [2, 30]]


@pytest.mark.parametrize("kind", TABLES)
def test_tables_in_memory(kind: str) -> None:
    check(read(TABLES[kind]()))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: pd.DataFrame(COLUMNS).to_parquet(path),
        lambda path: pd.DataFrame(COLUMNS, index=[5, 6, 7, 8]).to_parquet(path),
        lambda path: pl.DataFrame(COLUMNS).write_parquet(path),
        lambda path: pyarrow.parquet.write_table(pa.table(COLUMNS), path, row_group_size=1),
        lambda path: pyarrow.parquet.write_table(pa.table(COLUMNS), path, use_dictionary=False, compression="zstd"),
    ],
    ids=["pandas", "pandas, own index", "polars", "row groups", "plain"],
)
def test_parquet_files(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "a.parquet")
    check(read(tmp_path / "a.parquet"))


def test_a_folder_of_parquet_is_one_table(tmp_path: Path) -> None:
    table = pa.table(COLUMNS)
    pyarrow.parquet.write_table(table[2:], tmp_path / "part-2.parquet")
    pl.from_arrow(table[:2]).write_parquet(tmp_path / "part-1.parquet")
    (tmp_path / "_SUCCESS").touch()
    check(read(tmp_path))


def test_the_place_in_a_folder_is_the_file_and_its_row(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table(COLUMNS), tmp_path / "a.parquet")
    bad = {**COLUMNS, "user": ["q", "r", "s", "t"], "value": [1.0, float("inf"), 1.0, 1.0]}
    pyarrow.parquet.write_table(pa.table(bad), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"Got inf in column 'value' at row 1 of .*b\.parquet"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            {"user": [1], "ad": [2], "value": [1.0]},
            r"Column 'user' must be string in every file.*Got int64 in .*b\.parquet",
        ),
        (
            {"user": ["a"], "value": [1.0]},
            r"Every file must have the columns user, ad, value.*Got user, value in .*b\.parquet",
        ),
        ({"user": ["a"], "ad": [1]}, r"Column 'value' must be in .*b\.parquet"),
    ],
)
def test_files_of_a_folder_must_agree(tmp_path: Path, second: dict, message: str) -> None:
    pyarrow.parquet.write_table(pa.table(COLUMNS), tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pa.table(second), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=message):
        read(tmp_path)


def test_strings_of_digits_stay_strings_in_a_table_with_types() -> None:
    frame = pd.DataFrame({"user": ["1", "2"], "value": [1.0, 2.0]})
    assert read(frame).vocabularies[0].kind == "string"
    assert list(read(frame, ids="integer").vocabularies[0]) == [1, 2]
    assert list(read(pd.DataFrame({"ad": [1, 2], "value": [1, 2]}), ids="string").vocabularies[0]) == ["1", "2"]


def test_times_and_labels_of_a_frame() -> None:
    when = pd.to_datetime(["2024-03-01", "2024-03-02"])
    frame = pd.DataFrame({"user": ["a", "b"], "when": when, "zoned": when.tz_localize("UTC"), "value": [True, False]})
    entries = read(frame, modes=["user"], time="when", binary=True)
    assert entries.values.tolist() == [1.0, 0.0]
    assert entries.times.tolist() == [stamp.value // 1000 for stamp in when]
    assert read(frame, modes=["user"], time="zoned").times.tolist() == entries.times.tolist()
    with pytest.raises(DataError, match=r"all strings or all integers.*in column 'when'"):
        read(frame)


def test_a_column_of_mixed_objects_is_an_error() -> None:
    with pytest.raises(DataError, match=r"Columns must each have one type. Got, in the DataFrame: .*user"):
        read(pd.DataFrame({"user": ["a", 1], "value": [1.0, 2.0]}))


def test_what_is_no_source() -> None:
    with pytest.raises(InputError, match=r"A source must be a path.*Got builtins\.dict"):
        read({"a": 1})
    with pytest.raises(InputError, match=r"are for files. Got DataFrame"):
        read(pd.DataFrame(COLUMNS), format="csv")


def test_reading_a_file_needs_none_of_the_libraries_whose_tables_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,ad,value\na,1,1\nb,2,2\n")
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pandas", "polars", "sparse"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
from gptf_gpytorch import read
print(read("a.csv").ids())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[('a', 1), ('b', 2)]"
