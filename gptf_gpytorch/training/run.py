"""A run, whatever its method: who takes part, where its states are kept, who watches, how it ends."""

from abc import ABC, abstractmethod
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.distributed.communicator import Communicator
from gptf_gpytorch.distributed.elastic import ElasticCommunicator
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.tracking.tracker import Tracker, Trackers
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.fitted import KIND, FittedModel
from gptf_gpytorch.training.problem import digest
from gptf_gpytorch.training.result import Result
from gptf_gpytorch.training.signals import StopRequest
from gptf_gpytorch.training.state import describe
from gptf_gpytorch.training.store import Store
from gptf_gpytorch.training.timings import Stopwatch
from gptf_gpytorch.version import __version__


class Run(ABC):
    """What all methods have in common: who takes part, where states are kept, who watches.

    :param entries: all entries, the same on every worker.
    """

    def __init__(
        self,
        entries: TensorEntries,
        config: TrainConfig,
        communicator: Communicator,
        watchers: list[Tracker],
        output: str | Path | None,
        resume: bool,
        value_name: str,
    ) -> None:
        config.check()
        if not len(entries):
            raise InputError("There must be entries to train on. Got none.")
        if resume and output is None:
            raise InputError("resume needs the run's folder: give output.")
        self.entries, self.config, self.communicator, self.watchers = entries, config, communicator, watchers
        self.output, self.resume = None if output is None else Path(output), resume
        self.store = Store(
            self.output,
            config,
            communicator,
            resume=resume,
            describe=lambda: describe(config, entries.shape, self.digest),
        )
        self.stop, self.stopwatch = StopRequest(), Stopwatch()
        self.value_name = value_name
        self._speaks = False  # whether this worker has begun to
        self._change = ""

    @property
    def tracker(self) -> Tracker:
        """Who watches worker 0."""
        return Trackers(self.watchers if self.communicator.rank == 0 else [])

    def renew(self, change: str, held: ExitStack) -> None:
        """Meet the workers of an elastic job again."""
        self._change = change
        with self.stop.listening():  # a signal is answered when they have met
            self.store.leave(held)
            cast(ElasticCommunicator, self.communicator).renew()

    def fail(self, reason: str) -> None:
        """Tell who watches, if they were told of the run."""
        if self._speaks:
            self.tracker.fail(reason)

    @cached_property
    def digest(self) -> str:
        """What tells the entries from others."""
        return digest(self.entries)

    @abstractmethod
    def go(self) -> Result:
        """Train, or go on."""

    def fingerprint(self) -> dict[str, Any]:
        """What must be the same on all workers for them to take the same steps."""
        return {
            "the version of gptf_gpytorch": __version__,
            "the version of torch": torch.__version__,
            **self.config.to_dict(),
            "resume": self.resume,
            "whether there is an output folder": self.output is not None,
            "the shape of the tensor": self.entries.shape,
            "the number of entries": len(self.entries),
            "the SHA-256 of the entries": self.digest,
        }

    def save_model(self, fitted: FittedModel) -> None:
        """Write the model, on the worker that writes."""
        if self.output is not None and self.store.writes:
            fitted.save(self.output / KIND)
