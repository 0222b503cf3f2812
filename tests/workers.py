"""Workers that are threads of the test process."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from gptf_gpytorch import Communicator


class Workers:
    """Workers that are threads of this process, with a real barrier: each waits for all the others' tensors."""

    def __init__(self, size: int) -> None:
        self.size, self.slots = size, [torch.empty(0)] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def run(self, job: Callable[["ThreadCommunicator"], object]) -> list:
        def guarded(communicator: ThreadCommunicator) -> object:
            try:
                return job(communicator)
            except BaseException:
                self.barrier.abort()
                raise

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(guarded, [ThreadCommunicator(self, rank) for rank in range(self.size)]))


class ThreadCommunicator(Communicator):
    def __init__(self, workers: Workers, rank: int) -> None:
        self.workers, self._rank, self.lengths = workers, rank, []

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self.workers.size

    def sum(self, tensor: Tensor) -> Tensor:
        self.lengths.append(tensor.numel())
        return torch.stack(self._exchange(tensor)).sum(0)

    def broadcast(self, tensor: Tensor, root: int = 0) -> Tensor:
        return self._exchange(tensor)[root].clone()

    def _exchange(self, tensor: Tensor) -> list[Tensor]:
        self.workers.slots[self._rank] = tensor.clone()
        self.workers.barrier.wait()
        found = list(self.workers.slots)
        self.workers.barrier.wait()
        return found
