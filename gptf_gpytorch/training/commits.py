"""Commits: the state after the last step in every worker's memory, so that whoever is left can go on from it."""

import copy
from typing import Any

import torch
from torch import Tensor

from gptf_gpytorch.distributed.communicator import Communicator
from gptf_gpytorch.training.checkpoints import broadcast
from gptf_gpytorch.training.optimizers import Optimizer
from gptf_gpytorch.training.state import Progress, pack
from gptf_gpytorch.variational.elbo import CollapsedELBO


class Commits:
    """The last commit of this worker."""

    def __init__(self) -> None:
        #: The state dict of the bound, the optimiser and the progress.
        self.last: tuple[dict[str, Tensor], Optimizer, Progress] | None = None

    def keep(self, mll: CollapsedELBO, optimizer: Optimizer, progress: Progress) -> None:
        """Replace the last commit."""
        parameters = {name: tensor.detach().clone() for name, tensor in mll.state_dict().items()}
        # A step puts new tensors into the optimiser and the progress and leaves the old ones as they are.
        self.last = parameters, copy.copy(optimizer), progress.copy()

    def share(self, communicator: Communicator) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The latest commit that a worker has, packed, on every worker; None if nobody has one. A collective."""
        held = torch.zeros(communicator.size, dtype=torch.int64)
        if self.last is not None:
            held[communicator.rank] = self.last[2].iteration + 1
        held = communicator.sum(held)
        if not bool(held.any()):
            return None
        mine = ({}, {}) if self.last is None else (pack(*self.last), self.last[2].to_dict())
        return broadcast(communicator, mine, root=int(held.argmax()))
