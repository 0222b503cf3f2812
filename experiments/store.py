"""The finished fits of a table: a JSON file with a line for each, which several processes may add to."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plan import Cell

RESULTS = Path(__file__).with_name("results")


class Store:
    """`FOLDER/TABLE.json`: ``cells`` by key, and the ``environments`` that they name.

    :param folder: where the file is, or will be.
    :param table: its name.
    """

    def __init__(self, folder: Path, table: str) -> None:
        self.path = folder / f"{table}.json"

    def read(self) -> dict[str, Any]:
        """What is there."""
        if not self.path.exists():
            return {"environments": {}, "cells": {}}
        found: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        return found

    @property
    def cells(self) -> dict[str, Any]:
        """The finished fits by key."""
        cells: dict[str, Any] = self.read()["cells"]
        return cells

    def add(self, cell: Cell, result: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Keep a fit, in the place of one with another configuration; the file is there whole before and after.

        :param about: the machine and the versions, which fits share.
        """
        environment = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:8]
        with self.alone():
            found = self.read()
            cells = {key: old for key, old in found["cells"].items() if not key.startswith(f"{cell.place}/")}
            cells[cell.key] = {**_rounded(result), "environment": environment}
            used = {old["environment"] for old in cells.values()}
            every = {**found["environments"], environment: about}
            environments = {name: every[name] for name in sorted(used)}
            draft = self.path.with_suffix(".json.new")
            with draft.open("w", encoding="utf-8") as file:
                file.write(
                    f'{{\n"environments": {_lines(environments)},\n"cells": {_lines(dict(sorted(cells.items())))}\n}}\n'
                )
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other process writes meanwhile."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def _lines(found: Mapping[str, Any]) -> str:
    """An object with one line for each key."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()) + "\n}"


def _rounded(value: Any) -> Any:
    """Numbers with six digits: more of them are noise, and differ between machines."""
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
