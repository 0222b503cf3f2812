"""What a run has to tell a tracking server, on the disk before anything is sent.

A journal is a folder: `journal.jsonl`, lines of JSON that are only ever added to, and the files that some of them name.
Training writes to it and never waits for a server; what has been sent is remembered beside it (`sent.json`), so that a
server which was away hears the rest later, and nothing twice.
"""

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = "mlflow"  # of the journals of a run, beside its checkpoints
_LINES, _SENT = "journal.jsonl", "sent.json"


class Journal:
    """One run's journal.

    :param folder: where it is, or will be with its first line.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def new(cls, output: Path) -> "Journal":
        """An empty one, for a run whose checkpoints are in ``output``."""
        return cls(output / FOLDER / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}")

    @classmethod
    def all(cls, output: Path) -> list["Journal"]:
        """Those of a run's folder, the first first."""
        return [cls(path.parent) for path in sorted((output / FOLDER).glob(f"*/{_LINES}"))]

    @classmethod
    def below(cls, output: Path) -> list["Journal"]:
        """Those of a run's folder and of runs in folders below it, a parent before its children."""
        found = (path.parent for path in output.rglob(f"{FOLDER}/*/{_LINES}"))
        return [cls(folder) for folder in sorted(found, key=lambda folder: (len(folder.parts), folder))]

    @property
    def key(self) -> str:
        """What tells this run from all others, whatever the server calls it."""
        return self.folder.name

    def append(self, kind: str, **content: Any) -> None:
        """Add a line; it is whole on the disk, or not there."""
        line = json.dumps({"kind": kind, "time": int(1000 * time.time()), **content}) + "\n"
        self.folder.mkdir(0o700, parents=True, exist_ok=True)  # an address may hold a password
        descriptor = os.open(self.folder / _LINES, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":  # somebody was killed in the middle of a line
                line = "\n" + line
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def records(self, start: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
        """The whole lines from a byte on, each with the byte where the next begins."""
        try:
            with (self.folder / _LINES).open("rb") as file:
                file.seek(start)
                for line in file:
                    start += len(line)
                    if line.endswith(b"\n"):
                        try:
                            yield json.loads(line), start
                        except ValueError:  # a line that was cut short
                            continue
        except FileNotFoundError:
            return

    @property
    def sent(self) -> dict[str, Any]:
        """How far the server has heard (``start``, a byte), the ``run_id`` it gave, and the last ``trouble``."""
        try:
            found: dict[str, Any] = json.loads((self.folder / _SENT).read_text())
        except (FileNotFoundError, ValueError):
            return {"start": 0, "run_id": None, "trouble": None}
        return found

    def remember(self, sent: Mapping[str, Any]) -> None:
        """Keep what :attr:`sent` returns."""
        draft = self.folder / f".{_SENT}.{os.getpid()}"
        draft.write_text(json.dumps(dict(sent)))
        draft.replace(self.folder / _SENT)

    @property
    def first(self) -> dict[str, Any]:
        """The line that the journal begins with; empty if there is none."""
        return next((record for record, _ in self.records()), {})

    @property
    def lent(self) -> bool:
        """Whether its run is one that somebody else has opened, and ends."""
        starts = [record for record, _ in self.records() if record["kind"] in ("begin", "again")]
        return bool(starts and starts[-1]["run_id"])

    @property
    def waiting(self) -> int:
        """How many lines the server has not heard."""
        return sum(1 for _ in self.records(self.sent["start"]))
