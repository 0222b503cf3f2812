"""Workers that are threads of the test process."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from gptf_gpytorch import Communicator


class Workers:
    """Workers that are threads of this process, with a real barrier: each waits for all the others' tensors.

    Between two collectives one after the other has its turn: GPyTorch switches settings of the whole process while it
    evaluates a kernel, and two threads that do so at once may leave them switched.
    """

    def __init__(self, size: int) -> None:
        self.size, self.slots = size, [torch.empty(0)] * size
        self.barrier, self.turn = threading.Barrier(size, timeout=60), threading.Lock()

    def run(self, job: Callable[["ThreadCommunicator"], object]) -> list:
        def guarded(communicator: ThreadCommunicator) -> object:
            try:
                with self.turn:
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
        self._meet()
        found = list(self.workers.slots)
        self._meet()
        return found

    def _meet(self) -> None:
        self.workers.turn.release()
        try:
            self.workers.barrier.wait()
        finally:
            self.workers.turn.acquire()
