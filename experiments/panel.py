"""The panel: further tensors to choose the default model on, which may not be redistributed and so are never downloaded.

Their files, ``NAME_train.csv.gz`` and ``NAME_test.csv.gz``, are in the folder ``panel`` of ``GPTF_DATA_DIR``. Training files
alone are read unless the test set is asked for.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas
import pooch

from gptf_gpytorch import DataError, InputError, TensorEntries, read

_DAYS = 1461  # of the four years that beijing's time, in [0, 1], runs through


@dataclass(frozen=True)
class _Kind:
    """Which columns of a file are modes, and whether values are labels in {0, 1}."""

    modes: tuple[str, ...]
    binary: bool


_TRIPLES = _Kind(("head", "relation", "tail"), True)
TENSORS = {
    "umls": _TRIPLES,
    "nations": _TRIPLES,
    "fb237v1": _TRIPLES,
    "article": _Kind(("m0", "m1", "m2"), False),
    "beijing": _Kind(("m0", "m1", "m2", "time"), False),
    "traffic": _Kind(("m0", "m1", "m2", "time_bin"), False),
    "ssf": _Kind(("m0", "m1", "m2", "time_bin"), False),
}


@lru_cache(maxsize=2)
def load(name: str, *, test: bool = False) -> tuple[TensorEntries, bool]:
    """A tensor's training entries, and whether they are labels.

    Values of article are log1p of counts; beijing's days are numbered from 0.

    :param name: one of :data:`TENSORS`.
    :param test: the test entries instead, with the training set's vocabularies; an id that is not in them is row -1.
    """
    if name not in TENSORS:
        raise InputError(f"A tensor of the panel must be one of {', '.join(TENSORS)}. Got {name!r}.")
    kind = TENSORS[name]
    train = read(_frame(name, "train"), modes=kind.modes, binary=kind.binary)
    if not test:
        return train, kind.binary
    vocabularies = train.vocabularies
    frame = _frame(name, "test")
    return read(frame, modes=kind.modes, binary=kind.binary, vocabularies=vocabularies, unseen="prior"), kind.binary


def _frame(name: str, part: str) -> pandas.DataFrame:
    """The columns of a file that are modes, and its values."""
    folder = Path(os.environ.get("GPTF_DATA_DIR") or pooch.os_cache("gptf_gpytorch") / "data") / "panel"
    path = folder / f"{name}_{part}.csv.gz"
    if not path.is_file():
        raise DataError(
            f"The panel's files must be in the folder panel of GPTF_DATA_DIR; they cannot be downloaded. Got no {path}."
        )
    frame = pandas.read_csv(path, usecols=[*TENSORS[name].modes, "value"])
    if name == "article":
        frame["value"] = np.log1p(frame["value"])
    if name == "beijing":
        frame["time"] = (frame["time"] * (_DAYS - 1)).round().astype(np.int64)
    return frame
