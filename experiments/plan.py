"""From a file of ``configs/`` to the fits of a table.

A file has the table's ``seed`` and ``ranks``, the name of ``ours`` (the method that every other is tested against), a table
``[data.NAME]`` for each data set with its ``folds`` (and ``ranks``, if they are its own, and ``quick = false``, if it takes too
long), and ``[methods.LABEL]`` for each row, whose keys are options of the method, and:

- ``method``: the name in the registry, where the label is another one;
- ``data``: the data sets that it is for, all by default;
- ``folds`` and ``ranks``: others than those of the data set or the table;
- ``repeats``: fits of each cell, from as many seeds, over which scores are averaged; 1 by default;
- ``vary``: options with several values, each of which is a row of its own, ``LABEL option=value``, or a list of the options of
  each row;
- ``on``: options for one data set, as in ``on.acc = {inducing = 200}``, which may have a ``vary`` of their own.
"""

import hashlib
import itertools
import json
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from methods import RANKLESS

from gptf_gpytorch import InputError

CONFIGS = Path(__file__).with_name("configs")
TABLES = ("small", "large", "ctr", "scalability")
_WORDS = ("method", "data", "folds", "ranks", "repeats", "vary", "on")


@dataclass(frozen=True)
class Cell:
    """One fit of a table.

    :param label: the row that it belongs to.
    :param rank: None for a method that has none.
    :param method: its name in the registry.
    :param repeat: numbers the fits that differ in the seed alone.
    """

    data: str
    label: str
    rank: int | None
    fold: int
    method: str
    options: Mapping[str, Any]
    seed: int
    repeat: int = 0

    @property
    def place(self) -> str:
        """Where it is in the table."""
        repeat = f".{self.repeat}" if self.repeat else ""
        return f"{self.data}/{self.label}/{self.rank or '-'}/{self.fold}{repeat}"

    @property
    def key(self) -> str:
        """Its place, and what tells its configuration from others that may have been there."""
        what = json.dumps([self.method, dict(self.options), self.seed], sort_keys=True)
        return f"{self.place}/{hashlib.sha256(what.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Plan:
    """A table.

    :param ours: the label that the others are tested against.
    :param slow: the data sets that ``quick`` leaves out.
    """

    name: str
    ours: str
    cells: tuple[Cell, ...]
    slow: frozenset[str] = frozenset()

    @classmethod
    def read(cls, name: str, configs: Path = CONFIGS) -> "Plan":
        """The whole table of a name."""
        path = configs / f"{name}.toml"
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        missing = {"seed", "ranks", "ours", "data", "methods"} - set(content)
        if missing:
            raise InputError(f"A table must have seed, ranks, ours, data and methods. Got {path} without {missing}.")
        if content["ours"] not in content["methods"]:
            raise InputError(f"ours must be the label of a method of the table. Got {content['ours']!r} in {path}.")
        cells = [
            Cell(data, row, rank, fold, method, options, content["seed"] + repeat, repeat)
            for data, about in content["data"].items()
            for fold in about["folds"]
            for label, keys in content["methods"].items()
            if data in keys.get("data", content["data"]) and fold in keys.get("folds", about["folds"])
            for row, method, options in _rows(label, keys, data)
            for rank in ([None] if method in RANKLESS else keys.get("ranks", about.get("ranks", content["ranks"])))
            for repeat in range(keys.get("repeats", 1))
        ]
        slow = frozenset(data for data, about in content["data"].items() if not about.get("quick", True))
        return cls(name, content["ours"], tuple(cells), slow)

    def only(
        self,
        *,
        quick: bool = False,
        labels: Collection[str] = (),
        data: Collection[str] = (),
        folds: Collection[int] = (),
        ranks: Collection[int] = (),
    ) -> "Plan":
        """A part of it: the cells that are in every collection that is not empty.

        :param quick: of each data set that is not slow the first fold, the lowest rank and one seed, every method.
        """
        parts: dict[str, tuple[str, Collection[Any]]] = {
            "--only": ("label", labels),
            "--data": ("data", data),
            "--folds": ("fold", folds),
            "--ranks": ("rank", ranks),
        }
        for flag, (name, wanted) in parts.items():
            there = {getattr(cell, name) for cell in self.cells} - {None}
            for value in wanted:
                if value not in there and not (name == "label" and any(_begins(found, value) for found in there)):
                    listed = ", ".join(map(str, sorted(there)))
                    raise InputError(f"{flag} must be in the table {self.name}: {listed}. Got {value}.")
        cells = [
            cell
            for cell in self.cells
            if (not labels or any(_begins(cell.label, label) for label in labels))
            and (not data or cell.data in data)
            and (not folds or cell.fold in folds)
            and (not ranks or cell.rank is None or cell.rank in ranks)
        ]
        if quick:
            first = {cell.data: min(c.fold for c in cells if c.data == cell.data) for cell in cells}
            lowest = {
                cell.data: min(c.rank for c in cells if c.data == cell.data and c.rank) for cell in cells if cell.rank
            }
            cells = [c for c in cells if c.fold == first[c.data] and c.rank in (None, lowest.get(c.data))]
            cells = [c for c in cells if c.data not in self.slow and not c.repeat]
        if not cells:
            raise InputError(
                f"A part of the table {self.name} must have fits. Got none: {', '.join(self.slow)} are not quick."
            )
        return replace(self, cells=tuple(cells))


def _begins(label: str, wanted: str) -> bool:
    """Whether a label is the wanted one, or one of its variants."""
    return label == wanted or label.startswith(f"{wanted} ")


def _rows(label: str, keys: Mapping[str, Any], data: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The rows of a method: label, name in the registry, options."""
    keys = dict(keys) | keys.get("on", {}).get(data, {})
    options = {name: value for name, value in keys.items() if name not in _WORDS}
    vary = keys.get("vary", {})
    if isinstance(vary, dict):
        vary = [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]
    for varied in vary:
        suffix = "".join(f" {name}={value}" for name, value in varied.items())
        yield label + suffix, keys.get("method", label), options | varied
