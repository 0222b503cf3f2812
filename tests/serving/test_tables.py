"""Tables of predictions through real files: what came is passed on as it came, and the rest is what predict says."""

import csv
import gzip
import os
import resource
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from gptf_gpytorch import DataError, InputError
from gptf_gpytorch.serving import reading
from gptf_gpytorch.serving.predictions import predict
from gptf_gpytorch.serving.tables import predict_table, write_predictions

ROWS = [["u01", "a02", "p03"], ["u13", "a08", "p07"], ["u00", "a00", "p00"]]
CELLS = [[1, 2, 3], [13, 8, 7], [0, 0, 0]]


def table(**more: list) -> pa.Table:
    return pa.table({**{name: [row[k] for row in ROWS] for k, name in enumerate(("user", "ad", "page"))}, **more})


def check(found: pa.Table, fitted, cells: list[list[int]]) -> None:
    for name, expected in predict(fitted, cells).columns().items():
        np.testing.assert_allclose(found.column(name).to_numpy(), expected.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars", "csv", "csv.gz", "tsv", "parquet", "folder", "entries"])
def test_sources(either, tmp_path: Path, kind: str) -> None:
    rows = table(note=["x", "y, z", 'say "hi"'])
    path = tmp_path / f"rows.{kind}"
    source: object = path
    if kind == "arrow":
        source = rows
    elif kind == "pandas":
        source = rows.to_pandas().astype({"ad": "category"})
    elif kind == "polars":
        source = pl.from_arrow(rows)
    elif kind == "csv":
        rows.to_pandas().to_csv(path, index=False)
    elif kind == "csv.gz":
        path.write_bytes(gzip.compress(rows.to_pandas().to_csv(index=False).encode()))
    elif kind == "tsv":
        rows.to_pandas().to_csv(path, index=False, sep="\t")
    elif kind == "parquet":
        pyarrow.parquet.write_table(rows, path)
    elif kind == "folder":
        path.mkdir()
        pyarrow.parquet.write_table(rows[:2], path / "part-0.parquet")
        pyarrow.parquet.write_table(rows[2:], path / "part-1.parquet")
    else:
        either.test.save(path)
        found = predict_table(either.fitted, path)
        check(found, either.fitted, either.test.indices)
        assert predict_table(either.fitted, either.test).equals(found)
        assert found.column("user").to_pylist() == [ids[0] for ids in either.test.ids()]
        return
    found = predict_table(either.fitted, source)
    check(found, either.fitted, CELLS)
    assert found.column("note").to_pylist() == ["x", "y, z", 'say "hi"']
    assert found.column("user").to_pylist() == [row[0] for row in ROWS]


def test_text_is_written_as_it_came(either, tmp_path: Path) -> None:
    text = (
        'page,note,user,"a,b",ad,value\n'
        'p03,007,u01,"1,5",a02,1.50\n'
        'p07,"two\nlines",u13,NA,a08,\n'
        'p00,"say ""hi""",u00,,a00,not known\n'
    )
    (tmp_path / "in.csv").write_text(text)
    assert write_predictions(either.fitted, tmp_path / "in.csv", tmp_path / "out.csv") == 3
    with (tmp_path / "out.csv").open(newline="") as file:
        written = list(csv.reader(file))
    with (tmp_path / "in.csv").open(newline="") as file:
        came = list(csv.reader(file))
    assert [row[:6] for row in written] == came
    names = list(predict(either.fitted, CELLS).columns())
    assert written[0][6:] == names
    for place, name in enumerate(names, start=6):
        expected = predict(either.fitted, CELLS).columns()[name].tolist()
        assert [float(row[place]) for row in written[1:]] == pytest.approx(expected, rel=1e-12)


def test_plain_text_is_written_without_quotes(gaussian, tmp_path: Path) -> None:
    pyarrow.csv.write_csv(table(), tmp_path / "in.csv")
    write_predictions(gaussian.fitted, tmp_path / "in.csv", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().startswith("user,ad,page,mean,std,lower,upper\nu01,a02,p03,")


@pytest.mark.parametrize("note", ["a,b", 'say "hi"', "two\nlines", "two\rlines"])
def test_text_with_marks_is_quoted(gaussian, tmp_path: Path, note: str) -> None:
    write_predictions(gaussian.fitted, table(note=["plain", note, ""]), tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row[3] for row in csv.reader(file)] == ["note", "plain", note, ""]


def test_newlines_anywhere_in_a_long_file(gaussian, tmp_path: Path) -> None:
    notes = ["\n".join(["word"] * 100)] * 12_000  # more than a block of the reader
    rows = pa.table({"user": ["u01"] * 12_000, "ad": ["a02"] * 12_000, "page": ["p03"] * 12_000, "note": notes})
    pyarrow.csv.write_csv(rows, tmp_path / "in.csv")
    found = predict_table(gaussian.fitted, tmp_path / "in.csv")
    assert found.column("note").to_pylist() == notes


def test_parquet_keeps_types(probit, tmp_path: Path) -> None:
    rows = table(value=[1.0, None, 0.0], day=pd.to_datetime(["2024-01-01"] * 3), tags=[["a"], [], ["b", "c"]])
    pyarrow.parquet.write_table(rows, tmp_path / "in.parquet")
    assert write_predictions(probit.fitted, tmp_path / "in.parquet", tmp_path / "out.pq") == 3
    found = pyarrow.parquet.read_table(tmp_path / "out.pq")
    assert found.select(rows.column_names).equals(pyarrow.parquet.read_table(tmp_path / "in.parquet"))
    check(found, probit.fitted, CELLS)
    with pytest.raises(DataError, match="Columns must be of types that csv can hold"):
        write_predictions(probit.fitted, tmp_path / "in.parquet", tmp_path / "out.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.parquet", "out.pq"]


def test_values_of_text_become_numbers_in_a_table(gaussian, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("user,ad,page,value\nu01,a02,p03,1.50\nu13,a08,p07,\n")
    assert predict_table(gaussian.fitted, tmp_path / "in.csv").column("value").to_pylist() == [1.5, None]
    (tmp_path / "in.csv").write_text("user,ad,page,value\nu01,a02,p03,many\n")
    with pytest.raises(DataError, match="many"):
        predict_table(gaussian.fitted, tmp_path / "in.csv")


def test_many_blocks_are_one_table(either, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = either.test.ids()
    rows = pa.table({name: [row[k] for row in ids] for k, name in enumerate(("user", "ad", "page"))})
    pyarrow.csv.write_csv(rows, tmp_path / "in.csv")
    pyarrow.parquet.write_table(rows, tmp_path / "in.parquet")
    whole = predict_table(either.fitted, rows)
    check(whole, either.fitted, either.test.indices)
    monkeypatch.setattr(reading, "BATCH", 7)
    for source in (rows, tmp_path / "in.csv", tmp_path / "in.parquet"):
        found = predict_table(either.fitted, source)
        assert found.column("mean").num_chunks > 10
        assert found.column("user").to_pylist() == rows.column("user").to_pylist()
        check(found, either.fitted, either.test.indices)
    bad = pa.table({**{name: rows[name] for name in ("ad", "page")}, "user": [*rows["user"].to_pylist()[:-1], "eve"]})
    pyarrow.csv.write_csv(bad, tmp_path / "bad.csv")
    with pytest.raises(DataError, match=f"Got 'eve' in column 'user' at line {len(ids) + 1} of"):
        predict_table(either.fitted, tmp_path / "bad.csv")


def test_integer_ids_and_indices(numbered, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("user,ad,page\n105,2,p03\n100,8,p00\n")
    check(predict_table(numbered, tmp_path / "in.csv"), numbered, [[5, 2, 3], [0, 8, 0]])
    check(predict_table(numbered, tmp_path / "in.csv", index_base=1), numbered, [[5, 1, 3], [0, 7, 0]])
    rows = pa.table({"user": pa.array([105, 100], pa.int16()), "ad": [2, 8], "page": ["p03", "p00"]})
    check(predict_table(numbered, rows), numbered, [[5, 2, 3], [0, 8, 0]])
    (tmp_path / "in.csv").write_text("user,ad,page\n0105,2,p03\n")
    with pytest.raises(DataError, match="written without leading zeros"):
        predict_table(numbered, tmp_path / "in.csv")
    (tmp_path / "in.csv").write_text("user,ad,page\n105,2,p03\n105,9,p03\n")
    with pytest.raises(DataError, match=r"Indices must lie in \[0, 9\).*Got 9 in column 'ad' at line 3 of"):
        predict_table(numbered, tmp_path / "in.csv")
    check(predict_table(numbered, tmp_path / "in.csv", unseen="prior"), numbered, [[5, 2, 3], [5, -1, 3]])
    (tmp_path / "in.csv").write_text("user,ad,page\n105,x,p03\n")
    with pytest.raises(DataError, match=r"Indices must be integers. Got 'x' in column 'ad' at line 2"):
        predict_table(numbered, tmp_path / "in.csv")


def test_tns(gaussian, tmp_path: Path) -> None:
    fitted = replace(gaussian.fitted, vocabularies=(None, None, None))
    (tmp_path / "in.tns").write_text("# a comment\n2 3 4 1.5\n14 9 8 2\n")
    found = predict_table(fitted, tmp_path / "in.tns")
    assert found.column("user").to_pylist() == [2, 14]
    check(found, fitted, [[1, 2, 3], [13, 8, 7]])
    (tmp_path / "in.tns").write_text("2 3 4 1.5\n15 9 8 2\n")
    with pytest.raises(DataError, match=r"Indices must lie in \[1, 15\), as shape says. Got 15"):
        predict_table(fitted, tmp_path / "in.tns")
    check(predict_table(fitted, tmp_path / "in.tns", unseen="prior"), fitted, [[1, 2, 3], [-1, 8, 7]])


def test_unseen_ids(either, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("user,ad,page\nu01,a02,p03\neve,a02,p03\n")
    with pytest.raises(DataError, match=r"that the model knows \(or pass unseen='prior'\). Got 'eve' in column 'user'"):
        predict_table(either.fitted, tmp_path / "in.csv")
    found = predict_table(either.fitted, tmp_path / "in.csv", unseen="prior")
    check(found, either.fitted, [[1, 2, 3], [-1, 2, 3]])
    assert found.column("user").to_pylist() == ["u01", "eve"]
    with pytest.raises(InputError, match=r"unseen must be one of error, prior. Got 'ignore'"):
        predict_table(either.fitted, tmp_path / "in.csv", unseen="ignore")


def test_no_rows_at_all(gaussian, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("user,ad,page\n")
    assert write_predictions(gaussian.fitted, tmp_path / "in.csv", tmp_path / "out.csv") == 0
    assert (tmp_path / "out.csv").read_text() == "user,ad,page,mean,std,lower,upper\n"
    assert predict_table(gaussian.fitted, table()[:0]).num_rows == 0


def test_a_failure_leaves_what_was_there(gaussian, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH", 2)
    (tmp_path / "in.csv").write_text("user,ad,page\nu01,a02,p03\nu01,a02,p03\neve,a02,p03\n")
    for name in ("out.csv", "out.parquet"):
        (tmp_path / name).write_text("before")
        with pytest.raises(DataError, match="line 4"):
            write_predictions(gaussian.fitted, tmp_path / "in.csv", tmp_path / name)
        assert (tmp_path / name).read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv", "out.parquet"]
    write_predictions(gaussian.fitted, tmp_path / "in.csv", tmp_path / "in.csv.csv", unseen="prior")
    assert not stat.S_IMODE((tmp_path / "in.csv.csv").stat().st_mode) & 0o111
    with pytest.raises(DataError, match=r"must fit and be writable. Got .*No such file or directory"):
        write_predictions(gaussian.fitted, table(), tmp_path / "missing" / "out.csv")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_a_disk_that_cannot_be_written_to_is_named(gaussian, tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", tmp_path]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        with pytest.raises(DataError, match=r"must fit and be writable. Got .*out.csv: Read-only file system"):
            write_predictions(gaussian.fitted, table(), tmp_path / "out.csv")
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_no_room_for_the_file(gaussian, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("before")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(DataError, match=r"Predictions must fit and be writable. Got .*large"):
            write_predictions(gaussian.fitted, gaussian.test, tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / name).read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "an empty file"),
        ("usr,ad,page\nu01,a02,p03\n", "Column 'user' must be in .*the nearest are 'usr'"),
        ("user,ad,page,ad\nu01,a02,p03,a02\n", "Got 'ad' more than once"),
        ("user,ad,page,mean,upper\nu01,a02,p03,1,2\n", "other names. Got 'mean', 'upper' in"),
        ("user,ad,page\nu01,a02,p03\nu01,a02\n", "A row must have the 3 columns user, ad, page. Got 2 at line 3"),
        ("user,ad,page\nu01,,p03\n", "Ids must not be empty. Got '' in column 'ad' at line 2"),
    ],
)
def test_bad_files(gaussian, tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "in.csv").write_text(text)
    with pytest.raises(DataError, match=complaint):
        predict_table(gaussian.fitted, tmp_path / "in.csv")


def test_more_bad_sources(gaussian, tmp_path: Path) -> None:
    fitted = gaussian.fitted
    (tmp_path / "in.csv").write_bytes(b"user,ad,page\nu\xff1,a02,p03\n")
    with pytest.raises(DataError, match=r"Text must be UTF-8. Got byte 0xff"):
        predict_table(fitted, tmp_path / "in.csv")
    (tmp_path / "in.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="A parquet file must be whole"):
        predict_table(fitted, tmp_path / "in.parquet")
    with pytest.raises(DataError, match="must exist"):
        predict_table(fitted, tmp_path / "missing.csv")
    (tmp_path / "in.txt").touch()
    with pytest.raises(InputError, match=r"must be csv, tsv, tns or parquet. Got"):
        predict_table(fitted, tmp_path / "in.txt")
    with pytest.raises(InputError, match=r"must be written to one of .csv, .parquet, .pq. Got out.json"):
        write_predictions(fitted, table(), "out.json")
    with pytest.raises(InputError, match=r"a path, a table or entries. Got Tensor"):
        predict_table(fitted, torch.zeros(3, 3))
    with pytest.raises(DataError, match=r"Ids must not be missing. Got None in column 'user' at row 1"):
        predict_table(fitted, pa.table({"user": ["u01", None], "ad": ["a02"] * 2, "page": ["p03"] * 2}))
    with pytest.raises(InputError, match=r"index_base must be 0 or 1. Got 2"):
        predict_table(fitted, table(), index_base=2)
