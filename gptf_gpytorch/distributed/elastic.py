"""Workers that may leave and come while the others go on: what ``horovodrun --host-discovery-script`` starts."""

import os
import threading
import time
from contextlib import suppress
from typing import Any

import torch

from gptf_gpytorch.distributed.communicator import HorovodCommunicator, host_notifications
from gptf_gpytorch.distributed.watchdog import TIMEOUT, Watchdog, grace
from gptf_gpytorch.errors import InputError, WorkerError

_COMMAND = "horovodrun -np 2 --min-np 1 --max-np 4 --host-discovery-script ./discover.sh gptf train ... --elastic"
# What horovodrun says of a worker, in its order.
_NUMBERS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


class WorkersChangedError(WorkerError):
    """A worker is gone, or newcomers wait: the workers that are here must :meth:`~ElasticCommunicator.renew`."""


class ElasticCommunicator(HorovodCommunicator):
    """The workers of an elastic job. Its collectives raise :class:`WorkersChangedError` where others would end the job.

    :func:`~gptf_gpytorch.fit` does all that follows: with such a communicator it commits after every step, goes on with
    the workers that are left, and takes newcomers in. A newcomer runs the script from its first line, so there must be
    no collective of your own before ``fit``.

    :param timeout: seconds that a collective may wait for a worker; then that worker is removed.

    Example::

        communicator = ElasticCommunicator()  # in a script that horovodrun started with --host-discovery-script
        fit(entries, config, communicator=communicator, output="runs/clicks")
        communicator.close()

    """

    elastic = True

    def __init__(self, timeout: float = TIMEOUT) -> None:
        if os.environ.get("HOROVOD_ELASTIC") != "1":
            raise InputError(f"Elastic training must be started by an elastic horovodrun: {_COMMAND}. Got none.")
        self._news = threading.Event()
        super().__init__(timeout)
        notifications = host_notifications()
        notifications.init()
        notifications.register_listener(self)

    @property
    def job(self) -> str:
        """What tells this job from others."""
        return f"{self._rendezvous.host}:{self._rendezvous.port}"

    def on_hosts_updated(self, *_: Any) -> None:
        """Called by Horovod, in a thread of its own, on worker 0."""
        self._news.set()

    def commit(self) -> None:
        """All workers have come to this point: what they keep of it in memory, every one of them has. A collective.

        The moment in which newcomers are taken in.
        """
        if bool(self.sum(torch.tensor([float(self._news.is_set())]))):
            raise WorkersChangedError("The hosts of the job have changed.")

    def renew(self) -> None:
        """Meet again, those who are left and newcomers: rank and size may be others afterwards.

        It is an error if this worker's host was taken out of the job. Horovod ends the process if a worker dies in the
        moment in which they are connected: what must not be lost should be on the disk.
        """
        self._watchdog.stop()
        self._hvd.shutdown()
        self._join()

    def _join(self) -> None:
        while not self._met():
            pass
        # What the workers agreed on just now is in the environment: Horovod itself is not to ask for it once more.
        os.environ["HOROVOD_ELASTIC"] = "0"
        super()._join()
        os.environ["HOROVOD_ELASTIC"] = "1"

    def _met(self) -> bool:
        """Whether all workers that horovodrun counts on have come to this point; it says which number each one has.

        Horovod ends a process that waits for a worker that dies, so it is left to connect those who have come. Those who
        were started for this meeting are on their way: the others do not wait for them here, but ask once more.
        """
        # Who is announced later than that may not be among them.
        self._news.clear()
        me = f"{os.environ['HOROVOD_HOSTNAME']}:{os.environ['HOROVOD_LOCAL_RANK']}"
        try:
            # The answer comes when each worker has asked or died. One that asked twice would be counted twice.
            found = self._rendezvous.ask("rank_and_size", me, max(TIMEOUT, 2 * self._patience))
            rank, size, *more = map(int, found.decode().split(","))
        except (OSError, ValueError) as error:
            raise WorkerError(f"horovodrun must say which workers there are. Got: {error}") from error
        if rank < 0:
            raise WorkerError(f"A worker's host must be in the job. Got: {me} has been removed from elastic job.")
        numbers = zip(_NUMBERS, (rank, size, *more), strict=True)
        os.environ.update({f"HOROVOD_{name}": str(number) for name, number in numbers})
        missing, until = list(range(size)), time.monotonic() + 1.5 * grace(size)
        while time.monotonic() < until:
            with suppress(OSError):  # a busy machine may answer the next time
                self._rendezvous.put(f"here-{rank}", {})
                if self._rendezvous.get("again") is not None:
                    return False
                missing = [other for other in missing if self._rendezvous.get(f"here-{other}") is None]
                if not missing:
                    return True
            time.sleep(0.05)
        with suppress(OSError):
            self._rendezvous.put("again", {})
        return False

    def _watch(self) -> Watchdog:
        return Watchdog(self._rendezvous, self._rank, self._size, self._timeout, cut=self._links.cut)

    def _broken(self, error: RuntimeError) -> WorkerError:
        # Horovod keeps connections open until the workers meet again, and one that waits for another's part in a broken
        # collective would sit out gloo's timeout before it came to that meeting.
        self._links.cut()
        self._watchdog.report_broken()
        return WorkersChangedError("A worker is gone.")

    def close(self) -> None:
        """Leave the job, when all workers that are still in it have come to this point."""
        try:
            super().close()
        except WorkersChangedError:
            self._leave()
