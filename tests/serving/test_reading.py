"""Entries with values, read so that a fitted model understands them."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from gptf_gpytorch import DataError, InputError, Vocabulary
from gptf_gpytorch.serving.metrics import evaluate
from gptf_gpytorch.serving.reading import read_entries


def test_files_of_a_model_with_ids(either, tmp_path: Path) -> None:
    ids, values = either.test.ids(), either.test.values.tolist()
    lines = [f"{page},{value!r},{user},{ad}" for (user, ad, page), value in zip(ids, values, strict=True)]
    (tmp_path / "test.csv").write_text("\n".join(["page,value,user,ad", *lines]))
    found = read_entries(either.fitted, tmp_path / "test.csv")
    assert found == either.test
    weighed = replace(either.test, weights=torch.arange(len(ids)).double())
    weighed.save(tmp_path / "saved")
    assert read_entries(replace(either.fitted, value_name="stars"), tmp_path / "saved") == weighed
    assert evaluate(either.fitted, found) == evaluate(either.fitted, either.test)


def test_unseen_ids(gaussian) -> None:
    rows = pa.table({"user": ["u01", "eve"], "ad": ["a02"] * 2, "page": ["p03"] * 2, "stars": [1.0, 2.0]})
    with pytest.raises(DataError, match="Got 'eve'"):
        read_entries(gaussian.fitted, rows, value="stars")
    assert read_entries(gaussian.fitted, rows, value="stars", unseen="prior").indices.tolist() == [
        [1, 2, 3],
        [-1, 2, 3],
    ]
    new = read_entries(gaussian.fitted, rows, value="stars", unseen="new")
    assert new.ids() == [("u01", "a02", "p03"), ("eve", "a02", "p03")]
    with pytest.raises(InputError, match="unseen must be one of"):
        read_entries(gaussian.fitted, rows, value="stars", unseen="drop")


def test_ids_are_of_the_models_kind(numbered) -> None:
    rows = pa.table({"user": ["105"], "ad": [2], "page": ["p03"], "value": [1.0]})
    assert read_entries(numbered, rows).indices.tolist() == [[5, 2, 3]]
    ads = Vocabulary([str(row) for row in range(9)])
    fitted = replace(numbered, vocabularies=(numbered.vocabularies[0], ads, numbered.vocabularies[2]))
    assert [v.kind for v in read_entries(fitted, rows, unseen="new").vocabularies] == ["integer", "string", "string"]


def test_indices_beyond_the_shape(gaussian, tmp_path: Path) -> None:
    fitted = replace(gaussian.fitted, vocabularies=(None, None, None))
    (tmp_path / "test.tns").write_text("1 1 1 0.5\n15 9 8 0.5\n")
    with pytest.raises(DataError, match=r"mode 'user' must lie in \[0, 14\).*Got 14, counted from 0, at entry 1"):
        read_entries(fitted, tmp_path / "test.tns")
    found = read_entries(fitted, tmp_path / "test.tns", unseen="prior")
    assert found.indices.tolist() == [[0, 0, 0], [-1, 8, 7]]
    assert found.shape == fitted.shape
    (tmp_path / "test.tns").write_text("1 1 1 0.5\n")
    assert read_entries(fitted, tmp_path / "test.tns").shape == fitted.shape
    rows = torch.tensor([[0, 0, 0], [13, 8, 7]]), torch.ones(2)
    assert read_entries(fitted, rows).indices.tolist() == [[0, 0, 0], [13, 8, 7]]


def test_labels_must_be_labels(probit) -> None:
    rows = pa.table({"user": ["u01"], "ad": ["a02"], "page": ["p03"], "value": [2.0]})
    with pytest.raises(DataError, match=r"Labels must be 0 or 1. Got 2.0"):
        read_entries(probit.fitted, rows)
