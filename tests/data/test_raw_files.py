"""The published tensors that are text in columns, through the same readers."""

import os
from pathlib import Path

import numpy as np
import pytest

from gptf_gpytorch import DataError, read

DATA = Path(os.environ.get("GPTF_DATA_DIR", Path(__file__).parents[3] / "shared" / "data"))
COLUMNS = ["i", "j", "k", "value"]


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (DATA / name).is_dir(), reason=f"{name} is not here: set GPTF_DATA_DIR")


@needs("alog")
@pytest.mark.parametrize("fold", range(1, 6))
@pytest.mark.parametrize("part", ["train", "test"])
def test_alog(part: str, fold: int) -> None:
    path = DATA / "alog" / f"{part}-fold-{fold}.txt"
    options = {"format": "csv", "columns": COLUMNS, "index_base": 1, "shape": (200, 100, 200)}
    entries = read(path, duplicates="keep", **options)
    raw = np.loadtxt(path, delimiter=",")
    assert np.array_equal(entries.indices.numpy() + 1, raw[:, :3])
    assert np.array_equal(entries.values.numpy(), raw[:, 3])
    assert int((entries.values != 0).sum()) == (10_538 if part == "train" else 2_634)
    if part == "test":  # as published, a few test zeros are there twice
        with pytest.raises(DataError, match=r"Got \d more entries than cells.*at line \d+ of"):
            read(path, **options)


@needs("enron")
@pytest.mark.parametrize("fold", range(1, 6))
def test_enron(fold: int) -> None:
    options = {
        "format": "csv",
        "columns": COLUMNS,
        "index_base": 1,
        "shape": (203, 203, 200),
        "binary": True,
        "duplicates": "keep",
    }
    train = read(DATA / "enron" / f"train-fold-{fold}.txt", **options)
    test = read(DATA / "enron" / f"test-fold-{fold}.txt", **options)
    assert "505 ones and 505 zeros" in repr(train) or "506 ones and 506 zeros" in repr(train)
    assert int((test.values == 1).sum()) in (126, 127)
    assert int((test.values == 0).sum()) in (8_240, 8_241)


@needs("avazu")
def test_avazu() -> None:
    path = DATA / "avazu" / "test10.txt"
    names = ["hour", "page", "ad", "user"]
    SHAPE = (7, 4735, 8552, 8248)
    entries = read(path, format="tns", index_base=0, modes=names, binary=True, duplicates="keep", shape=SHAPE)
    raw = np.loadtxt(path, dtype=np.int64)
    assert entries.shape == SHAPE
    assert np.array_equal(entries.indices.numpy(), raw[:, :4])
    assert np.array_equal(entries.values.numpy(), raw[:, 4])


@needs("nell995")
def test_a_file_of_another_form_is_refused_with_its_line() -> None:
    """A count in the first line, then triples without a value: not a table."""
    with pytest.raises(DataError, match=r"an index for each of the modes .* and a value. Got 1 numbers at line 1 of"):
        read(DATA / "nell995" / "train2id.txt", format="tns")
