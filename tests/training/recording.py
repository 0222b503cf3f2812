"""A small run, and who writes down what it tells."""

from typing import Any

from gptf_gpytorch.tracking.tracker import Tracker

SMALL: dict[str, Any] = {"method": "paper", "rank": 2, "inducing": 20, "validation": 0.0, "checkpoint_seconds": 0.0}


class Recorder(Tracker):
    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def start(self, run: Any) -> None:
        self.seen.append(("start", run))

    def step(self, record: Any) -> None:
        self.seen.append(("step", record))

    def note(self, text: str) -> None:
        self.seen.append(("note", text))

    def compared(self, starts: Any) -> None:
        self.seen.append(("compared", starts))

    def finish(self, result: Any) -> None:
        self.seen.append(("finish", result.summary))

    def fail(self, reason: str) -> None:
        self.seen.append(("fail", reason))
