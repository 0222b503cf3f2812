"""csv, tsv and tns files, written by the libraries that users write them with, and by hand."""

import csv
import gzip
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from gptf_gpytorch import DataError, InputError, Vocabulary, read
from gptf_gpytorch.data.readers import text as text_reader

ROWS = [("ann", 3, 1.5), ("bob", 10, -2.0), ('Zoé, "the" 1st', 3, 0.0), ("ann", 10, 4e-3)]
CELLS = [(user, ad) for user, ad, _ in ROWS]
VALUES = [value for _, _, value in ROWS]


def by_hand(path: Path, delimiter: str) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([("user", "ad", "value"), *ROWS])


def columns() -> dict[str, list]:
    return dict(zip(("user", "ad", "value"), map(list, zip(*ROWS, strict=True)), strict=True))


WRITERS = {
    "csv": by_hand,
    "pandas": lambda path, delimiter: pd.DataFrame(columns()).to_csv(path, sep=delimiter, index=False),
    "polars": lambda path, delimiter: pl.DataFrame(columns()).write_csv(path, separator=delimiter),
    "pyarrow": lambda path, delimiter: pyarrow.csv.write_csv(
        pa.table(columns()), path, pyarrow.csv.WriteOptions(delimiter=delimiter)
    ),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", ["clicks.csv", "clicks.tsv", "CLICKS.CSV", "clicks.csv.gz", "clicks.tsv.gz"])
def test_separated_files(tmp_path: Path, writer: str, name: str) -> None:
    plain = tmp_path / "plain"
    WRITERS[writer](plain, "\t" if ".tsv" in name else ",")
    path = tmp_path / name
    path.write_bytes(gzip.compress(plain.read_bytes()) if name.endswith(".gz") else plain.read_bytes())
    entries = read(path)
    assert entries.ids() == CELLS
    assert entries.values.tolist() == VALUES
    assert entries.names == ("user", "ad")
    assert [vocabulary.kind for vocabulary in entries.vocabularies] == ["string", "integer"]
    assert list(entries.vocabularies[1]) == [3, 10]
    assert entries.shape == (3, 2)


NASTY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0"), min_size=1, max_size=20)


@pytest.mark.filterwarnings("ignore::gptf_gpytorch.DataWarning")
@given(st.lists(st.tuples(NASTY, NASTY), min_size=1, unique=True))
@example(
    [("e\u0301", "é"), ("é", "e\u0301"), ('"', '""'), (" a ", "a"), ("\u2028", "\x85"), ("nan", "NA"), ("#", "\ufeff")]
)
def test_any_unicode_id_comes_back_from_csv(cells: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ids.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerows([("a", "b", "value"), *((*cell, 1) for cell in cells)])
        entries = read(path, ids="string")
        assert entries.ids() == cells
        entries.save(Path(folder) / "saved")
        assert read(Path(folder) / "saved").ids() == cells


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        (["1", "2", "-3"], "integer"),
        (["0", "9223372036854775807"], "integer"),
        (["01", "1"], "string"),
        (["1", "x"], "string"),
        (["1", " 2"], "string"),
        (["+1", "2"], "string"),
        (["-0", "2"], "string"),
        (["9223372036854775808", "1"], "string"),
        (["1.2.3", "2.0.0"], "string"),
        (["12e4", "1e5"], "string"),
    ],
)
def test_ids_are_integers_only_if_all_are_written_so(tmp_path: Path, ids: list[str], kind: str) -> None:
    path = write(tmp_path / "a.csv", "id,other,value\n" + "".join(f"{item},{n},1\n" for n, item in enumerate(ids)))
    entries = read(path)
    assert entries.vocabularies[0].kind == kind
    assert [str(cell[0]) for cell in entries.ids()] == ids
    assert [cell[0] for cell in read(path, ids={"id": "string"}).ids()] == ids


def test_floats_are_no_ids_unless_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "user,price,value\na,1,1\nb,2.5,1\n")
    with pytest.raises(
        DataError, match=r"Ids must be strings or integers.*Got '2.5' in column 'price' at line 3 of .*a\.csv"
    ):
        read(path)
    assert [cell[1] for cell in read(path, ids="string").ids()] == ["1", "2.5"]
    assert read(path, modes=["user"]).shape == (2,)


def test_columns_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "when,who,clicked,what,note,w\n5,a,1,x,hi,2\n6,b,0,y,,0.5\n")
    entries = read(path, value="clicked", modes=["what", "who"], time="when", weight="w", binary=True)
    assert entries.names == ("what", "who")
    assert entries.ids() == [("x", "a"), ("y", "b")]
    assert entries.times.tolist() == [5, 6]
    assert entries.times.dtype == torch.int64
    assert entries.weights.tolist() == [2.0, 0.5]


def test_times_may_be_timestamps(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "u,t,value\na,2024-01-01 00:00:00,1\nb,2024-01-01T00:00:01,1\n")
    times = read(path, time="t").times.tolist()
    assert times[1] - times[0] == 1_000_000
    assert times[0] == pd.Timestamp("2024-01-01").value // 1000


def test_files_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "1,2,0.5\n3,1,1.5\n")
    entries = read(path, format="csv", columns=["i", "j", "value"], index_base=1, shape=(4, 2))
    assert entries.indices.tolist() == [[0, 1], [2, 0]]
    assert entries.shape == (4, 2)
    assert entries.vocabularies == (None, None)
    assert read(path, format="csv", columns=["i", "j", "value"], index_base=0).shape == (4, 3)


def test_other_delimiters_line_ends_and_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "\ufeffu;v;value\r\na;x;1\r\n\r\nb;y;2")
    assert read(path, delimiter=";").ids() == [("a", "x"), ("b", "y")]


def test_newlines_in_a_column_that_is_not_read(tmp_path: Path) -> None:
    note = "x" * 50 + "\n" + "y" * 50
    body = "".join(f'u{n},v{n % 7},"{note}",1\n' for n in range(60_000))  # more than one block
    path = write(tmp_path / "a.csv", "u,v,note,value\n" + body)
    entries = read(path, modes=["u", "v"])
    assert len(entries) == 60_000
    assert entries.ids([59_999]) == [("u59999", f"v{59_999 % 7}")]


def test_many_blocks_are_one_file(tmp_path: Path) -> None:
    """Short ids that are packed, then long ones that are not, then few, in several blocks."""
    rng = np.random.default_rng(0)
    users = [f"user-{n}" for n in rng.integers(10**6, size=300_000)] + ["x" * 40 + str(n) for n in range(50_000)]
    ads = [f"{n}" for n in rng.integers(50, size=350_000)]
    path = tmp_path / "a.csv"
    pd.DataFrame({"user": users, "ad": ads, "value": np.arange(350_000.0)}).to_csv(path, index=False)
    entries = read(path, duplicates="keep")
    assert [cell[0] for cell in entries.ids()] == users
    assert [cell[1] for cell in entries.ids()] == [int(ad) for ad in ads]
    assert list(entries.vocabularies[0]) == sorted(set(users))
    assert torch.equal(entries.values, torch.arange(350_000, dtype=torch.float64))


def test_a_later_file_gets_the_same_rows(tmp_path: Path) -> None:
    first = read(write(tmp_path / "a.csv", "u,v,value\na,1,1\nc,2,2\n"))
    path = write(tmp_path / "b.csv", "u,v,value\nc,1,1\nb,2,2\n")
    with pytest.raises(DataError, match=r"among the 2 of the vocabulary.*Got 'b' in column 'u' at line 3 of .*b\.csv"):
        read(path, vocabularies=first.vocabularies)
    later = read(path, vocabularies=first.vocabularies, unseen="prior")
    assert later.indices.tolist() == [[1, 0], [-1, 1]]
    assert later.known.tolist() == [True, False]
    assert later.vocabularies == first.vocabularies
    strings = read(path, vocabularies={"v": Vocabulary(["1", "2", "3"])})
    assert strings.shape == (2, 3)


@pytest.mark.parametrize(
    "content",
    [
        "1 2 3 1.5\n4 5 6 -2\n",
        "# comment\n1 2  3\t1.5\n\n 4 5 6 -2  \r\n# end\n",
        "1\t2\t3\t1.5\n4\t5\t6\t-2e0",
        "1 2 3 1.5 # why\n4 \t5 6 -2\n",
    ],
)
@pytest.mark.parametrize("name", ["a.tns", "a.tns.gz"])
def test_tns_with_any_white_space(tmp_path: Path, content: str, name: str) -> None:
    path = write(tmp_path / name, gzip.compress(content.encode()) if name.endswith(".gz") else content)
    entries = read(path)
    assert entries.indices.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert entries.values.tolist() == [1.5, -2.0]
    assert entries.shape == (4, 5, 6)
    assert read(path, modes=["i", "j", "k"], shape=(9, 9, 9)).names == ("i", "j", "k")


@pytest.mark.filterwarnings("ignore::gptf_gpytorch.DataWarning")
@given(
    st.lists(st.tuples(*[st.integers(1, 10**9)] * 3, st.floats(allow_nan=False, allow_infinity=False)), min_size=1),
    st.data(),
)
def test_tns_agrees_with_numpy(rows: list, data: st.DataObject) -> None:
    space = st.sampled_from([" ", "  ", "\t", " \t "])
    lines = [
        data.draw(space).join(map(repr, row)) + data.draw(st.sampled_from(["", " ", "\t", " # x"])) for row in rows
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tns"
        path.write_text("\n".join(lines))
        entries = read(path, duplicates="keep")
        expected = np.loadtxt(path, comments="#", ndmin=2)
    assert np.array_equal(entries.indices.numpy() + 1, expected[:, :3])
    assert np.array_equal(entries.values.numpy(), expected[:, 3])


def test_tns_blocks_are_cut_at_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "".join(f"{n + 1}  {n % 9 + 1} {n}\n" for n in range(200_000))
    entries = read(write(tmp_path / "a.tns", content))
    assert torch.equal(entries.values, torch.arange(200_000, dtype=torch.float64))
    assert entries.shape == (200_000, 9)


@pytest.mark.parametrize("text", ["a\n", " a  b\t\tc \n", "#x\n#y", "", "a #b\n\n c"])
def test_tidy_text(text: str) -> None:
    tidied = text_reader.tidy(text.encode()).decode()
    assert [line for line in tidied.split("\n") if line] == [
        " ".join(line.partition("#")[0].split()) for line in text.split("\n") if line.partition("#")[0].split()
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"index_base": 2}, "index_base must be 0 or 1"),
        ({"ids": "float"}, "ids must be one of auto, string, integer"),
        ({"duplicates": "first"}, "duplicates must be one of"),
        ({"format": "xlsx"}, r"by the name of the file or as given. Got 'xlsx'"),
        ({"modes": "u"}, "modes must be a sequence"),
        ({"modes": ["u", "value"]}, "A column can be one thing"),
        ({"shape": (1,)}, "one size for each of the modes"),
        ({"vocabularies": {"x": Vocabulary(["a"])}}, "vocabularies must be of the modes u, v. Got 'x'"),
        ({"vocabularies": [None]}, "for each of 2 modes. Got 1"),
        ({"dtype": torch.float16}, "dtype must be"),
        ({"format": "tns", "columns": ["a"]}, "columns and delimiter are for csv and tsv"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict, message: str) -> None:
    path = write(tmp_path / "a.csv", "u,v,value\na,1,1\nc,2,2\n")
    with pytest.raises(InputError, match=message):
        read(path, **options)


def test_single_precision_on_request(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "u,v,value\na,1,0.1\nc,2,2\n")
    assert read(path, dtype=torch.float32).values.dtype == torch.float32


def test_a_text_file_is_read_without_pandas(tmp_path: Path) -> None:
    # Arrow imports pandas for some conversions, which takes longer than a million rows.
    (tmp_path / "clicks.csv").write_text("user,ad,value\n" + "".join(f"u{i},{i % 7},{i % 2}\n" for i in range(100)))
    code = (
        "import sys, gptf_gpytorch.data as data; data.read('clicks.csv', binary=True); print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
