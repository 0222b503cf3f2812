"""The workers of one job. The only module that imports Horovod."""

import importlib
import importlib.metadata
import os
import re
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gptf_gpytorch.distributed.guardian import Guardian
from gptf_gpytorch.distributed.links import Links
from gptf_gpytorch.distributed.watchdog import TIMEOUT, Rendezvous, Watchdog, grace
from gptf_gpytorch.errors import InputError, WorkerError
from gptf_gpytorch.health import Fact

_SECRET = re.compile("PASSW|SECRET|TOKEN|CREDENTIAL|API_?KEY|PRIVATE_?KEY", re.IGNORECASE)
_BUILD = shlex.join([sys.executable, "-m", "gptf_gpytorch.distributed.build_horovod"])

# Milliseconds between two looks of Horovod's thread for something to do: at its own default, 1, the looks of two workers,
# which talk to each other each time, take some 7% of the core that an evaluation computes on.
_CYCLE = "3"


class Communicator(ABC):
    """The workers of one job, as this worker sees them: who it is, and what it can do together with the others.

    ``sum``, ``broadcast`` and what is made of them are collectives: all workers call them, in the same order.
    """

    #: Whether workers may leave and come while the others go on.
    elastic = False
    _wish: Callable[[], int] | None = None

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

    @property
    def job(self) -> str:
        """What tells an elastic job from others; empty for jobs that end with their first worker."""
        return ""

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

    def broadcast_bytes(self, payload: bytes, root: int = 0) -> bytes:
        """Worker ``root``'s payload, on every worker; what the others pass is not looked at."""
        length = int(self.broadcast(torch.tensor([len(payload)]), root))
        buffer = torch.zeros(length, dtype=torch.uint8)
        if root == self.rank and length:
            buffer = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        return self.broadcast(buffer, root).numpy().tobytes() if length else b""

    @contextmanager
    def asking(self, wish: Callable[[], int]) -> Iterator[None]:
        """While the block runs, this worker's slot in the payloads of every evaluation says what ``wish`` returns.

        Anything but 0 makes all workers leave that evaluation (:class:`~gptf_gpytorch.distributed.slots.StopRequestedError`).
        """
        before, self._wish = self._wish, wish
        try:
            yield
        finally:
            self._wish = before

    @property
    def wish(self) -> int:
        """What this worker asks of all now; 0 is nothing."""
        return 0 if self._wish is None else self._wish()

    def close(self) -> None:
        """Leave the job, when all workers have come to this point."""
        self.sum(torch.zeros(1))


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


class HorovodCommunicator(Communicator):
    """The workers that ``horovodrun`` started. Horovod is imported and initialised here, and nowhere else.

    :param timeout: seconds that a collective may wait for a worker; then the job ends on every worker with an error that
        names the one that did not come. It must be longer than the slowest worker's map of its entries.

    Example::

        communicator = HorovodCommunicator()  # in a script that was started by horovodrun
        mine = entries.shard(communicator.rank, communicator.size)

    """

    def __init__(self, timeout: float = TIMEOUT) -> None:
        if not timeout > 0:
            raise InputError(f"timeout must be greater than 0 seconds. Got {timeout!r}.")
        self._rendezvous, self._timeout = Rendezvous.of_environment(), timeout
        try:
            self._hvd = importlib.import_module("horovod.torch")
        except ImportError as error:
            raise InputError(
                f"A job that horovodrun started needs Horovod on every worker. Got: {error}. Build it with {_BUILD}"
            ) from error
        # Where this worker must go, the others have said so by then: a map of their entries, and the timeout, are over.
        self._patience = 2 * (timeout + grace(int(os.environ.get("HOROVOD_SIZE", 1))))
        self._guardian = Guardian(self._rendezvous.host, self._rendezvous.port, self._patience)
        self._join()

    def _join(self) -> None:
        """Meet the other workers."""
        os.environ.setdefault("HOROVOD_CYCLE_TIME", _CYCLE)
        self._links = Links(self._hvd.init)
        self._rank, self._size = int(self._hvd.rank()), int(self._hvd.size())
        self._guardian.key = f"accused-{self._rank}"
        self._watchdog = self._watch()

    def _watch(self) -> Watchdog:
        return Watchdog(self._rendezvous, self._rank, self._size, self._timeout)

    @property
    def rank(self) -> int:
        """This worker's number."""
        return self._rank

    @property
    def size(self) -> int:
        """What ``horovodrun -np`` said."""
        return self._size

    def sum(self, tensor: Tensor) -> Tensor:
        """One allreduce of the tensor as a flat vector. Every element is added up on one worker, and so the same on all."""
        flat = tensor.detach().reshape(-1).contiguous()
        name = f"sum of {flat.numel()} {flat.dtype}"
        found = self._run(name, lambda: self._hvd.allreduce_async(flat, op=self._hvd.Sum, name=name))
        return found.view(tensor.shape)

    def broadcast(self, tensor: Tensor, root: int = 0) -> Tensor:
        """One broadcast."""
        flat = tensor.detach().reshape(-1).contiguous()
        name = f"broadcast of {flat.numel()} {flat.dtype} from worker {root}"
        return self._run(name, lambda: self._hvd.broadcast_async(flat, root, name=name)).view(tensor.shape)

    def _run(self, name: str, start: Callable[[], int]) -> Tensor:
        with self._watchdog.collective(name):
            try:
                found: Tensor = self._hvd.synchronize(start())
            except RuntimeError as error:  # Horovod's is HorovodInternalError: a connection broke
                raise self._broken(error) from error
        return found

    def _broken(self, error: RuntimeError) -> WorkerError:
        return WorkerError(f"All workers must stay in the job. Got: {self._watchdog.missing() or error}")

    def close(self) -> None:
        """Wait for all workers, then leave Horovod."""
        super().close()
        self._leave()

    def _leave(self) -> None:
        self._watchdog.stop()
        self._hvd.shutdown()
        self._guardian.stop()


def current(timeout: float = TIMEOUT) -> Communicator:
    """The workers of the job that this process belongs to: ``horovodrun``'s, or this process alone.

    :param timeout: see :class:`HorovodCommunicator`.
    """
    return HorovodCommunicator(timeout) if started_by_horovodrun() else SingleProcess()


def host_notifications() -> Any:
    """What tells this worker that ``horovodrun`` has found hosts for more workers: Horovod's own notification manager."""
    return importlib.import_module("horovod.common.elastic").notification_manager


def started_by_horovodrun() -> bool:
    """Whether this process is a worker of a job."""
    return "HOROVOD_RANK" in os.environ and "HOROVOD_SIZE" in os.environ


def exposed() -> list[str]:
    """The variables that look like secrets, in a job whose launcher puts its environment on command lines."""
    return sorted(name for name in os.environ if started_by_horovodrun() and _SECRET.search(name))


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
