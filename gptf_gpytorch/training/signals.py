"""Ctrl-C and SIGTERM: a request that a run answers between two evaluations of the bound, or the end at once."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_TAKEN = (signal.SIGINT, signal.SIGTERM)
_PATIENCE = 3.0  # seconds for cleaning up


class StopRequest:
    """Whether someone asked to stop, and how.

    :param at_once: if given, a signal raises KeyboardInterrupt where it arrives, instead of waiting to be looked at; this is
        called with it where cleaning up then takes too long, as in a library that waits for the end of a pipe.
    """

    def __init__(self, *, at_once: Callable[[int], None] | None = None) -> None:
        self.at_once = at_once
        self.signal: int | None = None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again = self.signal is not None
        self.signal = self.signal or number
        if self.at_once or (again and number == signal.SIGINT):  # the second Ctrl-C does not wait
            for taken in _TAKEN:
                signal.signal(taken, signal.SIG_DFL)  # the next one not even for what is being cleaned up
            if self.at_once:
                last = threading.Timer(_PATIENCE, self.at_once, [self.signal])
                last.daemon = True
                last.start()
                # Where it arrives in a callback, Python would print and forget it; the timer does not.
                sys.unraisablehook = lambda _: None
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
