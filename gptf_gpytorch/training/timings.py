"""Where the time of a run goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds by name. What is measured inside another part is taken off that one: the parts add up to the whole."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to the part of that name."""
        began, beside, self._inside = time.monotonic(), self._inside, 0.0
        try:
            yield
        finally:
            spent = time.monotonic() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._inside
            self._inside = beside + spent
