"""``gptf``, observed: what this process does at any moment, and each step that it knows to be committed, go to files.

python experiments/benchmarks/soak_worker.py FOLDER train ... --elastic

`FOLDER/now-PID` outlives the process: it says in which phase it was killed. `FOLDER/commits-PID` has a line of JSON for
each commit.
"""

import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gptf_gpytorch import cli
from gptf_gpytorch.commands import train
from gptf_gpytorch.distributed.elastic import ElasticCommunicator
from gptf_gpytorch.training import checkpoints, store
from gptf_gpytorch.training.commits import Commits
from gptf_gpytorch.training.objective import BoundObjective
from gptf_gpytorch.training.state import Snapshot
from gptf_gpytorch.variational.evaluation import Evaluation

LENGTH = 128


class Now:
    """A file that says what this process does; written without a call to the kernel."""

    def __init__(self, folder: Path) -> None:
        self.rank, self.size, self.step, self.phase = -1, 0, 0, "start"
        path = folder / f"now-{os.getpid()}"
        path.write_bytes(b" " * LENGTH)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), LENGTH)
        self._commits = os.open(folder / f"commits-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @contextmanager
    def does(self, phase: str) -> Iterator[None]:
        """While the block runs."""
        before = self.phase
        self.write(phase)
        try:
            yield
        finally:
            self.write(before)

    def write(self, phase: str) -> None:
        self.phase = phase
        self._map[:] = json.dumps([self.rank, self.size, self.step, phase]).ljust(LENGTH).encode()

    def committed(self) -> None:
        record = {"time": time.monotonic(), "step": self.step, "size": self.size}
        os.write(self._commits, json.dumps(record).encode() + b"\n")


class Observed(ElasticCommunicator):
    """Says when it communicates."""

    def __init__(self, timeout: float) -> None:
        global now
        now = Now(FOLDER)
        super().__init__(timeout)

    def _join(self) -> None:
        with now.does("meeting"):
            super()._join()
        now.rank, now.size = self.rank, self.size
        now.write("between")

    def _run(self, name: str, start: Callable[[], int]) -> Any:
        with now.does("collective"):
            return super()._run(name, start)

    def commit(self) -> None:
        super().commit()
        now.committed()


class ObservedCommits(Commits):
    """Says which step it holds: one that was taken here, or that another worker remembered."""

    @property
    def last(self) -> Snapshot | None:
        return self._last

    @last.setter
    def last(self, state: Snapshot | None) -> None:
        self._last = state
        now.step = 0 if state is None else state.iteration


def observe(owner: Any, name: str, phase: str) -> None:
    """Say that a function runs while it does."""
    original = getattr(owner, name)

    def observed(*arguments: Any, **options: Any) -> Any:
        with now.does(phase):
            return original(*arguments, **options)

    setattr(owner, name, observed)


FOLDER = Path(sys.argv[1])
now: Now

if __name__ == "__main__":
    sys.argv[1:2] = []
    train.ElasticCommunicator = Observed  # type: ignore[misc]
    store.Commits = ObservedCommits  # type: ignore[misc]
    observe(BoundObjective, "__call__", "map")
    observe(Evaluation, "_solve", "lambda")
    observe(checkpoints, "save", "save")
    cli.main()
