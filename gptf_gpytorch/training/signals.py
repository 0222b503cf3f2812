"""Ctrl-C and SIGTERM as a request that the run answers between two evaluations of the bound."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequest:
    """Whether someone asked the run to stop, and how."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # the second Ctrl-C does not wait
        self.signal = number

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Take the two signals while the block runs; outside the main thread nothing is taken."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before: dict[int, Any] = {n: signal.signal(n, self._receive) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
