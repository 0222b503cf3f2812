"""Where the states of a run are kept, and where it goes on from: the disk and, in an elastic job, the workers' memory."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gptf_gpytorch.distributed.communicator import Communicator
from gptf_gpytorch.distributed.elastic import ElasticCommunicator
from gptf_gpytorch.distributed.verdicts import together
from gptf_gpytorch.errors import CheckpointError
from gptf_gpytorch.training.checkpoints import MODEL, Checkpoints
from gptf_gpytorch.training.commits import Commits
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.state import Snapshot, check_same
from gptf_gpytorch.wording import option

# Seconds in which a worker 0 that was cut off from an elastic job lets go of the folder.
_PATIENCE = 10.0


class Store:
    """The states of a run.

    :param output: the run's folder; None writes nothing.
    :param resume: whether to go on from what the folder holds.
    :param describe: what the run is, as its checkpoints say it.
    """

    def __init__(
        self,
        output: Path | None,
        config: TrainConfig,
        communicator: Communicator,
        *,
        resume: bool,
        describe: Callable[[], dict[str, Any]],
    ) -> None:
        self.output, self.config, self.communicator = output, config, communicator
        self.resume, self.describe = resume, describe
        self.checkpoints = Checkpoints(Path() if output is None else output, config.keep)
        self.commits = Commits()
        # Whether this worker holds the folder; whether it took it over from another one.
        self._holds = self._takes_over = False

    @property
    def writes(self) -> bool:
        """Whether this worker writes."""
        return self.output is not None and self.communicator.rank == 0

    @property
    def holds_a_state(self) -> bool:
        """Whether the folder has something to resume from."""
        return self.output is not None and bool(self.checkpoints.steps())

    def take(self, held: ExitStack) -> None:
        """Take the folder, on the worker that writes, for as long as the stack is open."""
        if not self.writes or self._holds:
            return
        if self.resume:
            self.checkpoints.expect()
        patience = _PATIENCE if self.communicator.elastic else 0.0
        self._takes_over = held.enter_context(self.checkpoints.lock(self.communicator.job, patience))
        self._holds = True
        steps, model = self.checkpoints.steps(), self.checkpoints.folder / MODEL
        if (steps or model.exists()) and not (self.resume or self._takes_over):
            there = f"step {steps[-1]}: {option('resume', True)} goes on with it," if steps else f"{MODEL}:"
            raise CheckpointError(
                f"A new run needs a folder without checkpoints and without {MODEL}. Got {self.output}, which holds "
                f"{there} another {option('output')} begins anew."
            )

    def leave(self, held: ExitStack) -> None:
        """Let go of the folder, before the workers of an elastic job meet again: any of them may have to write then."""
        if self.commits.last is not None and self.output is not None and self.output.is_dir():
            # On the disk first: not all may come to the meeting. If worker 0 is gone, whoever is the first writes.
            with suppress(CheckpointError):
                if not self._holds:
                    held.enter_context(self.checkpoints.lock(self.communicator.job))
                self._save_commit()
        held.close()
        self._holds = False

    def save(self, state: Snapshot | None) -> None:
        """Write a checkpoint, on the worker that writes; without a state, one that says how to begin."""
        if self.writes:
            self._write(state)

    def commit(self, state: Callable[[], Snapshot]) -> None:
        """Have a state in the memory of every worker of an elastic job."""
        if isinstance(self.communicator, ElasticCommunicator):
            self.commits.last = state()
            self.communicator.commit()

    def restore(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Where the run was, or None if it had not taken a step: in an elastic job what a worker remembers, else a checkpoint."""
        from_disk = self.resume
        if self.communicator.elastic:
            found = self.commits.share(self.communicator)
            if found is not None:
                self.commits.last = Snapshot(found[1]["iteration"], lambda: found)
                together(self.communicator, lambda: self._save_commit() if self.writes else None)
                return found
            left = self._takes_over and bool(self.checkpoints.steps())
            from_disk = bool(self.communicator.broadcast(torch.tensor([left]).long())) or self.resume
        if not from_disk:
            return None
        tensors, run = self.checkpoints.share_last(self.communicator)
        check_same(run, self.describe())
        return None if run["progress"] is None else (tensors, run["progress"])

    def _save_commit(self) -> None:
        """Write the last commit, unless it is there."""
        if self.commits.last is not None and self.commits.last.iteration not in self.checkpoints.steps():
            self._write(self.commits.last)

    def _write(self, state: Snapshot | None) -> None:
        tensors, progress = ({}, None) if state is None else state.pack()
        run = {**self.describe(), "workers": self.communicator.size, "progress": progress}
        run["score"] = None if state is None else state.score
        self.checkpoints.save(0 if state is None else state.iteration, tensors, run)
