"""The published tensors are read as published; nothing of a test set is trained on; a wrong file is not used."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("pooch")
pytest.importorskip("scipy")
import datasets

from gptf_gpytorch import DataError, InputError, TensorEntries

DATA = Path(os.environ.get("GPTF_DATA_DIR", Path(__file__).parents[3] / "shared" / "data"))
# name: shape, training nonzeros and zeros, test sets, and of each the nonzeros and zeros
PUBLISHED = {
    "alog": ((200, 100, 200), 10_538, 10_538, 1, 2_634, 3_977),
    "enron": ((203, 203, 200), 505, 505, 1, 127, 8_240),
    "acc": ((3_000, 150, 30_000), 564_046, 564_046, 50, 200, 1_800),
    "dblp": ((10_000, 200, 10_000), 155_185, 155_185, 50, 200, 1_800),
    "nell995": ((55_095, 200, 35_808), 149_678, 149_678, 20, 200, 2_000),
    "avazu": ((7, 4_735, 8_552, 8_248), None, None, 1, None, None),
}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTF_DATA_DIR", str(DATA))


def needs(name: str) -> object:
    absent = not (DATA / name).is_dir()
    return pytest.param(name, marks=pytest.mark.skipif(absent, reason=f"{name} is not here: set GPTF_DATA_DIR"))


def keys(entries: TensorEntries) -> np.ndarray:
    return np.ravel_multi_index(tuple(entries.indices.numpy().T.astype(np.int64)), entries.shape)


def nonzeros(entries: TensorEntries) -> int:
    return int((entries.values != 0).sum())


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", [needs(name) for name in PUBLISHED])
def test_a_published_tensor(name: str) -> None:
    shape, ones, zeros, sets, test_ones, test_zeros = PUBLISHED[name]
    split = datasets.load(name)
    assert split.train.shape == shape
    assert len(split.tests) == sets
    tested = np.concatenate([keys(test) for test in split.tests])
    trained = keys(split.train)
    assert len(np.unique(trained)) == len(trained)
    assert not np.isin(trained, tested).any()
    if ones is not None:
        assert (nonzeros(split.train), len(split.train) - nonzeros(split.train)) == (ones, zeros)
        first = split.tests[0]
        assert (nonzeros(first), len(first) - nonzeros(first)) == (test_ones, test_zeros)
    assert split.binary == (name not in ("alog", "acc"))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", [needs("enron")])
def test_the_entry_that_is_in_both_sets_of_a_fold_is_tested_on_only(name: str) -> None:
    split = datasets.load(name, 3)
    assert (nonzeros(split.train), len(split.train), nonzeros(split.tests[0])) == (504, 1_009, 127)
    assert not np.isin(keys(split.train), keys(split.tests[0])).any()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", [needs("nell995")])
def test_no_triple_is_a_zero_and_every_test_triple_is_tested_once(name: str) -> None:
    split = datasets.load(name)
    ones = np.concatenate([keys(test[test.values == 1]) for test in split.tests])
    zeros = np.concatenate([keys(test[test.values == 0]) for test in split.tests])
    assert len(np.unique(ones)) == 3_992
    assert len(np.unique(zeros)) == len(zeros) == 39_920
    known = np.concatenate([ones, keys(split.train[split.train.values == 1])])
    assert not np.isin(np.concatenate([zeros, keys(split.train[split.train.values == 0])]), known).any()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", [needs("avazu")])
def test_clicks_are_shuffled_halves_and_another_fold_has_others(name: str) -> None:
    first, again, other = datasets.load(name, 1), datasets.DATA[name](1), datasets.load(name, 2)
    assert first.train == again.train
    assert first.train != other.train
    assert len(first.train) == len(first.tests[0]) == 50_000
    assert 24_000 < nonzeros(first.train) < 26_000
    assert 4_500 < nonzeros(first.train[:10_000]) < 5_500


@pytest.mark.parametrize(
    ("name", "shape", "count"), [("serology", (438, 6, 11), 28_908), ("il2", (13, 4, 12, 8), 4_800)]
)
def test_tensorlys_tensors(name: str, shape: tuple[int, ...], count: int, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorly")
    datasets.announce.cache_clear()
    split = datasets.DATA[name](1)
    assert split.train.shape == shape
    assert len(split.train) + len(split.tests[0]) == count
    assert not np.isin(keys(split.train), keys(split.tests[0])).any()
    datasets.DATA[name](2)
    [line] = capsys.readouterr().err.splitlines()  # once
    assert line.startswith(f"{name}: ")
    assert "Licence: MIT" in line


@pytest.mark.parametrize("binary", [False, True])
def test_synthetic_tensors_are_seeded_and_not_multilinear(binary: bool) -> None:
    shape, count = (60, 50, 40, 1_000_000), 2_000
    split = datasets.synthetic(shape, count, binary=binary, seed=3)
    assert split.train.shape == shape
    assert (len(split.train), len(split.tests[0])) == (1_600, 400)
    assert not np.isin(keys(split.train), keys(split.tests[0])).any()
    assert split.train == datasets.synthetic(shape, count, binary=binary, seed=3).train
    assert split.train != datasets.synthetic(shape, count, binary=binary, seed=4).train
    if binary:
        assert set(split.train.values.tolist()) == {0.0, 1.0}
    # One factor for every entity: a multilinear form of them would have one singular value.
    full = datasets.synthetic((40, 40), 1_600, rank=1, noise=0.0, seed=0)
    entries = TensorEntries.concat([full.train, *full.tests])
    matrix = torch.zeros(40, 40).double()
    matrix[tuple(entries.indices.long().T)] = entries.values
    singular = torch.linalg.svdvals(matrix)
    assert float(singular[1] / singular[0]) > 0.05


def test_only_the_published_file_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the right content is taken from the folder without a network; any other is not taken."""
    content = b"1,1,1,0.5\n"
    digest = hashlib.sha256(content).hexdigest()
    source = {**datasets.SOURCES["alog"], "repository": "no one/nothing", "sha256": {"a.txt": digest}}
    monkeypatch.setitem(datasets.SOURCES, "alog", source)
    monkeypatch.setenv("GPTF_DATA_DIR", str(tmp_path))
    monkeypatch.setattr("pooch.HTTPDownloader.__call__", _no_network)
    path = tmp_path / "alog" / "a.txt"
    with pytest.raises(DataError, match=r"raw.githubusercontent.com/no%20one/nothing/e87d.*/a.txt. Got: no network"):
        datasets.fetch("alog", "a.txt")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"1,1,1,0.6\n")
    with pytest.raises(DataError, match=r"alog/a\.txt must be in"):
        datasets.fetch("alog", "a.txt")
    path.write_bytes(content)
    assert datasets.fetch("alog", "a.txt").read_bytes() == content


def _no_network(*_: object, **__: object) -> None:
    raise OSError("no network")


@pytest.mark.parametrize(
    ("name", "fold", "rule"), [("alogg", 1, "must be one of alog, enron"), ("alog", 6, r"lie in \[1, 5\]")]
)
def test_what_is_not_there_is_named(name: str, fold: int, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        datasets.load(name, fold)
