"""Ctrl-C and SIGTERM: a request that a run answers between two evaluations of the bound, or the end at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_TAKEN = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether someone asked to stop, and how.

    :param at_once: whether a signal raises KeyboardInterrupt where it arrives, instead of waiting to be looked at.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self.at_once = at_once
        self.signal: int | None = None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again = self.signal is not None
        self.signal = self.signal or number
        if self.at_once or (again and number == signal.SIGINT):  # the second Ctrl-C does not wait
            for taken in _TAKEN:
                signal.signal(taken, signal.SIG_DFL)  # the next one not even for what is being cleaned up
            raise KeyboardInterrupt

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Take the two signals while the block runs; outside the main thread nothing is taken."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before: dict[int, Any] = {number: signal.signal(number, self._receive) for number in _TAKEN}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
