"""Commits: the state after the last step in every worker's memory, so that whoever is left can go on from it."""

from typing import Any

import torch
from torch import Tensor

from gptf_gpytorch.distributed.communicator import Communicator
from gptf_gpytorch.training.checkpoints import broadcast
from gptf_gpytorch.training.state import Snapshot


class Commits:
    """The last commit of this worker."""

    def __init__(self) -> None:
        self.last: Snapshot | None = None

    def share(self, communicator: Communicator) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The latest commit that a worker has, packed, on every worker; None if nobody has one. A collective."""
        held = torch.zeros(communicator.size, dtype=torch.int64)
        if self.last is not None:
            held[communicator.rank] = self.last.iteration + 1
        held = communicator.sum(held)
        if not bool(held.any()):
            return None
        mine = ({}, {}) if self.last is None else self.last.pack()
        return broadcast(communicator, mine, root=int(held.argmax()))
