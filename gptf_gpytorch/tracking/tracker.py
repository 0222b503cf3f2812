"""What a run tells whoever watches it. The base class listens and does nothing."""

from collections.abc import Mapping, Sequence
from typing import Any


class Tracker:
    """Watches a run; every method may be left as it is."""

    def start(self, run: Mapping[str, Any]) -> None:
        """The run begins, or goes on: its configuration, data and environment."""

    def step(self, record: Mapping[str, Any]) -> None:
        """A step was taken: the numbers of :class:`~gptf_gpytorch.training.history.Step`."""

    def note(self, text: str) -> None:
        """Something happened that a reader of the log should know."""

    def compared(self, starts: Sequence[Mapping[str, Any]]) -> None:
        """What was tried before the run went on with the best.

        Method ``paper``: the seed of each start and its bound of an entry. Method ``sampled``: the rows of the race, each a name,
        a weight (None for what took no part) and scores of the held-out entries.
        """

    def finish(self, result: Any) -> None:
        """The run ended well: its :class:`~gptf_gpytorch.training.result.Result`."""

    def fail(self, reason: str) -> None:
        """The run ended with an error, or was stopped."""


class Trackers(Tracker):
    """Several trackers as one."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = tuple(trackers)

    def start(self, run: Mapping[str, Any]) -> None:
        """See :meth:`Tracker.start`."""
        for tracker in self.trackers:
            tracker.start(run)

    def step(self, record: Mapping[str, Any]) -> None:
        """See :meth:`Tracker.step`."""
        for tracker in self.trackers:
            tracker.step(record)

    def note(self, text: str) -> None:
        """See :meth:`Tracker.note`."""
        for tracker in self.trackers:
            tracker.note(text)

    def compared(self, starts: Sequence[Mapping[str, Any]]) -> None:
        """See :meth:`Tracker.compared`."""
        for tracker in self.trackers:
            tracker.compared(starts)

    def finish(self, result: Any) -> None:
        """See :meth:`Tracker.finish`."""
        for tracker in self.trackers:
            tracker.finish(result)

    def fail(self, reason: str) -> None:
        """See :meth:`Tracker.fail`."""
        for tracker in self.trackers:
            tracker.fail(reason)
