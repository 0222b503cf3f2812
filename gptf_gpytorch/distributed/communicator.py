"""The workers of one job. The only module that imports Horovod."""

import importlib
import importlib.metadata
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from gptf_gpytorch.health import Fact

_BUILD = shlex.join([sys.executable, "-m", "gptf_gpytorch.distributed.build_horovod"])


class Communicator(ABC):
    """The workers of one job, as this worker sees them: who it is, and what it can do together with the others.

    Every method but the properties is a collective: all workers call it, in the same order.
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """This worker's number, 0 <= rank < size."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of workers."""

    @abstractmethod
    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over workers of a tensor that has the same shape on each: the same bits on each."""

    @abstractmethod
    def broadcast(self, tensor: Tensor, root: int = 0) -> Tensor:
        """Worker ``root``'s tensor, on every worker; the others pass one of the same shape and dtype."""

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """What each worker passed, in the order of ranks, on every worker; lengths may differ."""
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(payload)
        found = []
        for root, length in enumerate(self.sum(lengths).tolist()):
            buffer = torch.zeros(length, dtype=torch.uint8)
            if root == self.rank and length:
                buffer = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
            found.append(self.broadcast(buffer, root).numpy().tobytes() if length else b"")
        return found


class SingleProcess(Communicator):
    """One worker: every sum is already complete."""

    @property
    def rank(self) -> int:
        """Always 0."""
        return 0

    @property
    def size(self) -> int:
        """Always 1."""
        return 1

    def sum(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def broadcast(self, tensor: Tensor, root: int = 0) -> Tensor:
        """The tensor itself."""
        return tensor


def describe() -> Iterator[Fact]:
    """Whether Horovod imports, and which controllers and operations it was built with."""
    remedy = _BUILD if sys.version_info < (3, 12) else "use Python 3.11: Horovod 0.28.1 imports distutils"
    try:
        version = importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        yield Fact("horovod", "not installed: training runs in one process", "missing", remedy)
        return
    try:
        hvd = importlib.import_module("horovod.torch")
        built = {
            "gloo": bool(hvd.gloo_built()),
            "mpi": bool(hvd.mpi_built()),
            "nccl": bool(hvd.nccl_built()),
        }
    # A wheel built against another torch can fail in any way while it loads its extension.
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        yield Fact("horovod", f"{version} does not import: {lines[0]}", "broken", f"{_BUILD} --force")
        return
    yield Fact("horovod", f"{version}, imports")
    controllers = ", ".join(f"{name} {'yes' if there else 'no'}" for name, there in built.items())
    if built["gloo"] or built["mpi"]:
        yield Fact("horovod controllers", controllers)
    else:
        yield Fact("horovod controllers", controllers, "broken", f"{_BUILD} --force")
