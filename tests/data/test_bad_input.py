"""Bad input: the error names the rule, the value, the column, the line and the file, and nothing is half-done."""

# ruff: noqa: E501  (a case a line)

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from gptf_gpytorch import DataError, DataWarning, read

GOOD = b"user,ad,value\n" + b"".join(b"u%d,%d,1\n" % (n, n % 7) for n in range(5))


def bad_csv(line: bytes) -> bytes:
    return GOOD + line + b"\n" + b"u9,1,0\n"


CSV = {
    "missing column": (b"user,ad,val\nann,1,1\n", {}, r"Column 'value' must be in FILE. Got 3 columns; the nearest are 'val'"),
    "missing mode": (GOOD, {"modes": ["usr"]}, r"Column 'usr' must be in FILE. Got 3 columns; the nearest are 'user'"),
    "twice": (b"user,user,value\na,b,1\n", {}, r"distinct names. Got 'user' more than once in FILE"),
    "no modes": (b"value\n1\n", {}, "At least one column must be a mode"),
    "empty": (b"", {}, r"at least one entry. Got an empty file, FILE"),
    "blank": (b"\n\n", {}, r"at least one entry. Got an empty file, FILE"),
    "header only": (b"user,ad,value\n", {}, r"at least one entry. Got none in FILE"),
    "short row": (bad_csv(b"u8,2"), {}, r"the 3 columns user, ad, value. Got 2 at line 7 of FILE, starting with 'u8'"),
    "long row": (bad_csv(b"u8,2,1,1"), {}, r"the 3 columns user, ad, value. Got 4 at line 7 of FILE"),
    "not a number": (bad_csv(b"u8,2,many"), {}, r"Values must be numbers. Got 'many' in column 'value' at line 7 of FILE"),
    "no value": (bad_csv(b"u8,2,"), {}, r"Values must be numbers. Got '' in column 'value' at line 7 of FILE"),
    "underscore": (bad_csv(b"u8,2,1_000"), {}, r"Values must be numbers. Got '1_000' in column 'value' at line 7"),
    "nan": (bad_csv(b"u8,2,nan"), {}, r"finite numbers. Got nan in column 'value' at line 7 of FILE"),
    "infinity": (bad_csv(b"u8,2,-inf"), {}, r"finite numbers. Got -inf in column 'value' at line 7 of FILE"),
    "overflow": (bad_csv(b"u8,2,1e999"), {}, r"finite numbers. Got inf in column 'value' at line 7 of FILE"),
    "label": (bad_csv(b"u8,2,0.5"), {"binary": True}, r"Labels must be 0 or 1. Got 0.5 in column 'value' at line 7 of FILE"),
    "label -1": (bad_csv(b"u8,2,-1"), {"binary": True}, r"Labels must be 0 or 1. Got -1.0 in column 'value' at line 7"),
    "weight": (bad_csv(b"u8,-2,1"), {"weight": "ad"}, r"Weights must be at least 0. Got -2.0 in column 'ad' at line 7"),
    "empty id": (bad_csv(b",2,1"), {}, r"Ids must not be empty. Got '' in column 'user' at line 7 of FILE"),
    "newline": (bad_csv(b'"u\n8",2,1'), {}, r"newline or NUL. Got 'u\\n8' in column 'user' at line 7 of FILE"),
    "NUL": (bad_csv(b"u\x008,2,1"), {}, r"newline or NUL. Got 'u\\x008' in column 'user' at line 7 of FILE"),
    "long id": (bad_csv(b"u" * 70_000 + b",2,1"), {}, r"at most 65,536 bytes long. Got 'uu.*\(70,002 characters\) in column 'user' at line 7"),
    "long line": (bad_csv(b"u" * 10_000_000 + b",2,1"), {}, r"at most 4,194,304 bytes long. Got more at line 7 of FILE, which starts with b'uuu"),
    "UTF-8": (bad_csv(b"u\xc3(8,2,1"), {}, rf"UTF-8. Got byte 0xc3 at byte offset {len(GOOD) + 1}, column 2 of line 7 of FILE"),
    "UTF-8 in the header": (b"us\xffer,ad,value\na,1,1\n", {}, r"byte 0xff at byte offset 2, column 3 of line 1 of FILE"),
    "UTF-16": ("user,value\na,1\n".encode("utf-16"), {}, r"byte 0xff at byte offset 0, column 1 of line 1 of FILE"),
    "open quote": (bad_csv(b'"u8,2,1'), {}, r"at line 7 of FILE"),
    "not an integer": (bad_csv(b"u8,2,1"), {"ids": "integer", "modes": ["user"]}, r"Ids must be integers.*Got 'u0' in column 'user' at line 2"),
    "zero index": (b"i,j,value\n1,1,1\n1,0,1\n", {"index_base": 1}, r"at least 1. Got 0 in column 'j' at line 3 of FILE"),
    "negative index": (b"i,j,value\n1,1,1\n-1,2,1\n", {"index_base": 0}, r"at least 0. Got -1 in column 'i' at line 3"),
    "index beyond": (b"i,j,value\n1,1,1\n1,4,1\n", {"index_base": 1, "shape": (3, 3)}, r"\[1, 4\), as shape says. Got 4 in column 'j' at line 3"),
    "text index": (b"i,j,value\n1,1,1\n1,x,1\n", {"index_base": 1}, r"Indices must be integers. Got 'x' in column 'j' at line 3"),
    "fraction index": (b"i,j,value\n1,1,1\n1,1.5,1\n", {"index_base": 1}, r"Indices must be integers. Got '1.5' in column 'j' at line 3"),
    "duplicate": (bad_csv(b"u1,1,2"), {}, r"Got 1 more entries than cells: \(user='u1', ad=1\) at line 3 of FILE and line 7 of FILE"),
    "labels after a sum": (bad_csv(b"u1,1,1"), {"binary": True, "duplicates": "sum"}, r"0 or 1 after duplicates='sum'. Got 2 for \('u1', 1\) in FILE"),
    "no time": (bad_csv(b"u8,,1"), {"time": "ad"}, r"Times must be numbers, dates or timestamps. Got '' in column 'ad' at line 7"),
}  # fmt: skip


@pytest.mark.parametrize("gzipped", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("case", CSV)
def test_bad_csv(tmp_path: Path, case: str, gzipped: bool) -> None:
    content, options, message = CSV[case]
    path = tmp_path / ("bad.csv.gz" if gzipped else "bad.csv")
    path.write_bytes(gzip.compress(content, 1) if gzipped else content)
    if gzipped:
        message = message.replace(", column 2", ".*, column 2")
        message = message.replace(", column", r"( of the decompressed text)?, column")
    with pytest.raises(DataError, match=message.replace("FILE", str(path).replace(".", r"\."))):
        read(path, **options)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_line_is_right_far_into_a_file_with_quoted_newlines_and_blank_lines(tmp_path: Path) -> None:
    """Many blocks; the record that is wrong starts at line 2 + 3 * 40,000."""
    path = tmp_path / "bad.csv"
    body = "".join(f'u{n},{n},"{"x" * 50}\n{"y" * 50}",1\n\n' for n in range(40_000))
    path.write_text("user,ad,note,value\n" + body + "v,1,z,bad\n")
    with pytest.raises(DataError, match=r"Got 'bad' in column 'value' at line 120002 of"):
        read(path, modes=["user", "ad"])


@pytest.mark.parametrize("cut", [0.0, 0.001, 0.5, 0.99999])
@pytest.mark.parametrize("name", ["a.csv.gz", "a.tns.gz"])
def test_truncated_gzip(tmp_path: Path, name: str, cut: float) -> None:
    rng = np.random.default_rng(0)
    line = "{},{},{}\n" if "csv" in name else "{} {} {}\n"
    text = ("user,ad,value\n" if "csv" in name else "") + "".join(
        line.format(n + 1, rng.integers(1, 999), rng.normal()) for n in range(20_000)
    )
    whole = gzip.compress(text.encode())
    path = tmp_path / name
    path.write_bytes(whole[: max(15, int(cut * len(whole)))] if cut else whole[:5])
    with pytest.raises(DataError, match=rf"A gzipped file must be whole. Got .*{name}, which breaks after line \d+"):
        read(path)


def test_a_name_that_says_gzip_for_a_file_that_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(GOOD)
    with pytest.raises(DataError, match=r"A gzipped file must be whole. Got .*Not a gzipped file"):
        read(path)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"1 1 2\n1 0 3\n", {}, r"at least 1. Got 0 in column 'mode_1' at line 2 of"),
        (b"1 1 2\n# c\n1 -4 3\n", {}, r"at least 1. Got -4 in column 'mode_1' at line 3 of"),
        (b"1 1 2\n1 9 3\n", {"shape": (2, 8)}, r"\[1, 9\), as shape says. Got 9 in column 'mode_1' at line 2 of"),
        (b"1 1 2\n\n1 2\n", {}, r"the 3 columns mode_0, mode_1, value. Got 2 at line 3 of"),
        (b"1 1 2\n1 2 3 4\n", {}, r"the 3 columns mode_0, mode_1, value. Got 4 at line 2 of"),
        (b"1 1 2\n1.5 2 3\n", {}, r"Indices must be integers. Got '1.5' in column 'mode_0' at line 2 of"),
        (b"1 1 2\n1 2 x\n", {}, r"Values must be numbers. Got 'x' in column 'value' at line 2 of"),
        (b"1 1 2\n1 2 nan\n", {}, r"finite numbers. Got nan in column 'value' at line 2 of"),
        (b"1 1 2\n1 2 3\n1 1 5\n", {}, r"\(mode_0=0, mode_1=0\) at line 1 of .* and line 3 of"),
        (b"1 1 1\n1 2 3\n", {"binary": True}, r"Labels must be 0 or 1. Got 3.0 in column 'value' at line 2 of"),
        (b"1 1 2\n1 \xff 3\n", {}, r"byte 0xff at byte offset 8, column 3 of line 2 of"),
        (b"1 1 2\n" + b"1" * 10_000_000 + b" 1 1\n", {}, r"at most 4,194,304 bytes long. Got more at line 2 of"),
        (b"7\n", {}, r"an index for each of the modes .* and a value. Got 1 numbers at line 1 of"),
        (b"# only\n", {}, "Got an empty file"),
        (b"1 1 1\n", {"modes": ["a"]}, "an index for each of the modes"),
    ],
)
def test_bad_tns(tmp_path: Path, content: bytes, options: dict, message: str) -> None:
    path = tmp_path / "bad.tns"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(path, **options)


def table(**change: object) -> pa.Table:
    columns = {"user": ["a", "b", "c"], "ad": [1, 2, 3], "value": [1.0, 0.0, 1.0], **change}
    return pa.table(columns)


@pytest.mark.parametrize(
    ("bad", "options", "message"),
    [
        (table(value=[1.0, float("nan"), 0.0]), {}, r"finite numbers. Got nan in column 'value' at row 1 of"),
        (table(value=[1.0, None, 0.0]), {}, r"Values must not be missing. Got None in column 'value' at row 1 of"),
        (table(value=["1", "2", "3"]), {}, r"Values must be numbers. Got '1' in column 'value' at row 0 of"),
        (table(value=[1, 2, 0]), {"binary": True}, r"Labels must be 0 or 1. Got 2.0 in column 'value' at row 1 of"),
        (table(user=["a", None, "c"]), {}, r"Ids must not be missing. Got None in column 'user' at row 1 of"),
        (table(user=["a", "x\ny", "c"]), {}, r"newline or NUL. Got 'x\\ny' in column 'user' at row 1 of"),
        (table(user=["a", "x\0y", "c"]), {}, r"newline or NUL. Got 'x\\x00y' in column 'user' at row 1 of"),
        (table(ad=[1.0, 2.0, 3.0]), {}, r"all strings or all integers.*Got 'double 1.0' in column 'ad' at row 0 of"),
        (table(ad=[True, False, True]), {}, r"Got 'bool True' in column 'ad'"),
        (table(ad=pa.array([2**63, 1, 2], pa.uint64())), {}, r"within 64 bits.*in column 'ad' of"),
        (table(ad=[0, 1, 2]), {"index_base": 1, "modes": ["ad"]}, r"at least 1. Got 0 in column 'ad' at row 0 of"),
        (table(), {"value": "val"}, r"Column 'val' must be in .*nearest are 'value'"),
        (table()[:0], {}, "at least one entry. Got none in"),
    ],
)
@pytest.mark.parametrize("parquet", [False, True], ids=["memory", "parquet"])
def test_bad_tables(tmp_path: Path, bad: pa.Table, options: dict, message: str, parquet: bool) -> None:
    source: object = bad
    if parquet:
        source = tmp_path / "bad.parquet"
        pyarrow.parquet.write_table(bad, source)
    with pytest.raises(DataError, match=message):
        read(source, **options)


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    pyarrow.parquet.write_table(table(), path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"A parquet file must be whole. Got .*bad\.parquet"):
        read(path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"must exist. Got .*nowhere\.csv"):
        read(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, match=r"Got .* without either"):
        read(tmp_path)


def test_a_mode_with_one_entity_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("user,ad,value\na,1,1\nb,1,2\n")
    with pytest.warns(DataWarning, match=r"Mode 'ad' of .*a\.csv has one entity"):
        assert read(path).shape == (2, 1)
