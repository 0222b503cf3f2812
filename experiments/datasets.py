"""The tensors of the experiments by name: fetched once, checked, parsed from their raw form, and split as published.

``GPTF_DATA_DIR`` is where the files are and are fetched to (by default, a folder in the user's cache); where all of them are
there, no network is needed. What has been decided about them:

- Test sets are taken as published, with the few zeros that are in them twice, so that numbers can be compared.
- Fold 3 of Enron has the same entry in its training and its test set. It is left out of training.
- NELL-995 trains on `train2id.txt` alone; the validation triples are only kept from being sampled as zeros. Its test triples are
  dealt to 20 sets of 199 or 200, each with ten times as many zeros, which is what a test set of the paper has.
"""

import os
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pooch
import torch
from baselines.base import Task

from gptf_gpytorch import DataError, InputError, TensorEntries, read
from gptf_gpytorch.data import balance, holdout, sample_zeros

SOURCES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Split:
    """One training set, and what it is tested on.

    :param train: with its zeros, where the protocol samples them.
    :param tests: the test sets; metrics are averaged over them.
    :param binary: whether values are labels in {0, 1}.
    """

    train: TensorEntries
    tests: tuple[TensorEntries, ...]
    binary: bool

    def task(self, rank: int, seed: int) -> Task:
        """What a method may see of it."""
        return Task(self.train, self.binary, rank, seed)


@lru_cache(maxsize=2)
def load(name: str, fold: int = 1) -> Split:
    """A split of a tensor.

    :param name: one of :data:`DATA`.
    :param fold: from 1 on: a published fold, or, where there is none, the seed of the split and of sampled zeros.
    """
    if name not in DATA:
        raise InputError(f"A data set must be one of {', '.join(DATA)}. Got {name!r}.")
    if not 1 <= fold <= (most := FOLDS.get(name, sys.maxsize)):
        raise InputError(f"A fold of {name} must lie in [1, {most}]. Got {fold}.")
    return DATA[name](fold)


def fetch(name: str, file: str) -> Path:
    """The path of a raw file, which is downloaded if it is not there, and has the right SHA-256."""
    announce(name)
    source, local = SOURCES[name], f"{name}/{file}"
    url = quote(f"{source['repository']}/{source['commit']}/{source['folder']}/{file}")
    url = f"https://raw.githubusercontent.com/{url}"
    folder = os.environ.get("GPTF_DATA_DIR") or pooch.os_cache("gptf_gpytorch") / "data"
    files = pooch.create(folder, "", registry={local: f"sha256:{source['sha256'][file]}"}, urls={local: url})
    try:
        return Path(files.fetch(local))
    except (OSError, ValueError) as error:  # no network, or a file that is not the published one
        raise DataError(
            f"The file {local} must be in {folder} (GPTF_DATA_DIR), or be had from {url}. Got: {error}"
        ) from error


@cache
def announce(name: str) -> None:
    """Say once whose data it is, and what may be done with it."""
    print(f"{name}: {SOURCES[name]['citation']}. Licence: {SOURCES[name]['licence']}.", file=sys.stderr)


def _folds(name: str, shape: tuple[int, ...], binary: bool, fold: int) -> Split:
    """Published folds, whose training sets have their zeros: `i,j,k,value` from 1."""
    train, test = (
        read(
            fetch(name, f"{part}-fold-{fold}.txt"),
            format="csv",
            columns=["i", "j", "k", "value"],
            index_base=1,
            shape=shape,
            binary=binary,
            duplicates="keep",
        )
        for part in ("train", "test")
    )
    return Split(train[~_shared(train, test)], (test,), binary)


def _shared(entries: TensorEntries, others: TensorEntries) -> torch.Tensor:
    """`[n]`: whether the cell of an entry is also among the others."""
    mine, theirs = (
        np.ravel_multi_index(tuple(part.indices.numpy().T.astype(np.int64)), part.shape) for part in (entries, others)
    )
    return torch.from_numpy(np.isin(mine, theirs))


def _matlab(name: str, binary: bool, fold: int) -> Split:
    """Training nonzeros, held-out nonzeros and 50 test sets in a MATLAB file, from 1; the training zeros are sampled."""
    from scipy.io import loadmat

    data = loadmat(fetch(name, f"{name}.mat"), struct_as_record=False, squeeze_me=True)["data"]
    shape = tuple(int(size) for size in data.size)

    def entries(cells: Any, values: Any) -> TensorEntries:
        cells, values = np.asarray(cells, dtype=np.int64), np.asarray(values, dtype=np.float64)
        return read((cells, values), index_base=1, shape=shape, binary=binary)

    tests = tuple(entries(test.subs, test.Ymiss) for test in data.test)
    held_out = entries(data.test_ind_all, np.ones(len(data.test_ind_all)))
    train = balance(entries(data.Y.subs, data.Y.vals), exclude=[held_out, *tests], seed=fold)
    return Split(train, tests, binary)


def _nell(fold: int) -> Split:
    """Triples `head tail relation` after a line with their number, as head x relation x tail; all zeros are sampled."""
    parts = [np.loadtxt(fetch("nell995", f"{part}2id.txt"), dtype=np.int64, skiprows=1) for part in _NELL]
    triples = np.concatenate(parts)
    rows = [np.unique(triples[:, column], return_inverse=True)[1] for column in (0, 2, 1)]
    known = read((np.stack(rows, axis=1), np.ones(len(triples))), modes=["head", "relation", "tail"], binary=True)
    ends = np.cumsum([len(part) for part in parts]).tolist()
    train, valid, test = known[: ends[0]], known[ends[0] : ends[1]], known[ends[1] :]
    zeros = sample_zeros(known, 10 * len(test), seed=fold)
    order, sets = np.random.default_rng(fold).permutation(len(test)), 20
    tests = tuple(
        TensorEntries.concat([test[order[place::sets]], zeros[(order[place::sets, None] * 10 + np.arange(10)).ravel()]])
        for place in range(sets)
    )
    # Another seed: the same one would draw the neighbours of the test zeros.
    return Split(balance(train, exclude=[valid, test, zeros], seed=fold + 1000), tests, True)


def _avazu(fold: int) -> Split:
    """Clicks and as many impressions without, `i j k l y` from 0, sorted by y; half of them are tested on."""
    entries = read(
        fetch("avazu", "test10.txt"),
        format="tns",
        index_base=0,
        modes=["hour", "page", "ad", "user"],
        shape=(7, 4735, 8552, 8248),
        binary=True,
    )
    order = np.random.default_rng(fold).permutation(len(entries))
    half = len(entries) // 2
    return Split(entries[order[:half]], (entries[order[half:]],), True)


def _tensorly(name: str, fold: int) -> Split:
    """A tensor of tensorly's wheel, with a tenth of its entries held out."""
    import tensorly.datasets

    announce(name)
    bunch = {"serology": tensorly.datasets.load_covid19_serology, "il2": tensorly.datasets.load_IL2data}[name]()
    found = holdout(read(np.asarray(bunch.tensor, dtype=np.float64), modes=bunch.dims), 0.1, seed=fold)
    return Split(found.train, found.tests, False)


def synthetic(
    shape: tuple[int, ...], count: int, *, binary: bool = False, rank: int = 2, noise: float = 0.1, seed: int = 0
) -> Split:
    r"""Entries of a tensor that no multilinear form has, with a fifth of them held out.

    The value of a cell is a sample of a Gaussian process at the concatenated factors x of its entities, with the kernel
    :math:`e^{-|x - x'|^2 / 2}` by 500 random features, plus noise; a label says whether that is positive.

    :param shape: of any size.
    :param count: of entries, in distinct cells.
    :param rank: of the hidden factors.
    :param noise: its standard deviation; that of the function is 1.
    """
    drawn = sample_zeros(
        TensorEntries(torch.empty(0, len(shape), dtype=torch.long), torch.empty(0), shape), count, seed=seed
    )
    generator = np.random.default_rng(seed)
    hidden = [generator.normal(size=(size, rank)) for size in shape]
    x = np.concatenate([table[rows] for table, rows in zip(hidden, drawn.indices.numpy().T, strict=True)], axis=1)
    f = np.zeros(count)
    for frequency, phase, weight in zip(
        generator.normal(size=(500, x.shape[1])),
        generator.uniform(0, 2 * np.pi, 500),
        generator.normal(size=500),
        strict=True,
    ):
        f += weight * np.cos(x @ frequency + phase)
    f = f / np.sqrt(250) + noise * generator.normal(size=count)
    values = torch.from_numpy((f > 0).astype(np.float64) if binary else f)
    found = holdout(TensorEntries(drawn.indices, values, shape), 0.2, seed=seed)
    return Split(found.train, found.tests, binary)


_NELL = ("train", "valid", "test")
DATA: dict[str, Callable[[int], Split]] = {
    "alog": partial(_folds, "alog", (200, 100, 200), False),
    "enron": partial(_folds, "enron", (203, 203, 200), True),
    "acc": partial(_matlab, "acc", False),
    "dblp": partial(_matlab, "dblp", True),
    "nell995": _nell,
    "avazu": _avazu,
    "serology": partial(_tensorly, "serology"),
    "il2": partial(_tensorly, "il2"),
    "synthetic": lambda fold: synthetic((20, 15, 10), 1_000, seed=fold),
    "synthetic-binary": lambda fold: synthetic((20, 15, 10), 1_000, binary=True, seed=fold),
}
FOLDS = {"alog": 5, "enron": 5}
