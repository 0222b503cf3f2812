"""Ends a job in which a worker hangs, is stopped, or calls another collective, and says which worker it is.

In an elastic job only that worker is ended: the others lose their connection to it, and go on.

Horovod waits for such a worker without end. Here every worker has a thread that looks at how long its own collective has
been waiting. When that is too long it raises an alarm in the key-value store of ``horovodrun``'s rendezvous, which all
workers can reach and which costs nothing before that moment. All threads that can answer do so: which collective their
worker waits in, or what it does instead. When all have answered, or after a grace period, all of them read the answers,
come to the same verdict, print it, and end their processes. A worker whose thread cannot answer has a guardian
(``guardian.py``) that ends it.
"""

import http.client
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gptf_gpytorch.errors import InputError

#: Seconds that a collective may wait for a worker, if nothing else is said.
TIMEOUT = 600.0
#: The exit code of a worker that the watchdog ends.
EXIT_CODE = 70
# Seconds between two looks, and from the alarm to the verdict; the time to answer grows with the number of workers.
_TICK, _GRACE = 0.25, 2.0
_WORKERS_A_TICK = 64


def grace(size: int) -> float:
    """Seconds that so many workers have to answer an alarm."""
    return _GRACE * max(1.0, size / _WORKERS_A_TICK)


class Rendezvous:
    """The key-value store of ``horovodrun``: HTTP, without authentication, so nothing in it is believed but for a message."""

    def __init__(self, host: str, port: int, scope: str = "gptf") -> None:
        self.host, self.port, self.scope = host, port, scope

    @classmethod
    def of_environment(cls) -> "Rendezvous":
        """The one that ``horovodrun`` tells its workers of."""
        host, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{name}", "") for name in ("ADDR", "PORT"))
        if not host or not port.isdecimal():
            raise InputError("Workers must be started by horovodrun with the Gloo controller. Got no rendezvous.")
        return cls(host, int(port))

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Store a value for all workers to read."""
        self._request("PUT", f"{self.scope}/{key}", json.dumps(value).encode())

    def get(self, key: str) -> dict[str, Any] | None:
        """The value, None if there is none yet."""
        found = self._request("GET", f"{self.scope}/{key}")
        with suppress(ValueError):
            value = json.loads(found) if found else None
            return value if isinstance(value, dict) else None
        return None

    def ask(self, scope: str, key: str, timeout: float) -> bytes:
        """What ``horovodrun`` itself answers, which may take so many seconds."""
        return self._request("GET", f"{scope}/{key}", timeout=timeout)

    def _request(self, method: str, path: str, body: bytes | None = None, timeout: float = _GRACE / 2) -> bytes:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, f"/{path}", body)
            answer = connection.getresponse()
            content = answer.read()
            return content if answer.status == http.HTTPStatus.OK else b""
        finally:
            connection.close()


class Watchdog:
    """Watches this worker's collectives.

    :param timeout: seconds that one may wait.
    :param cut: in an elastic job, ends this worker's collective. Then only workers that do not come are ended, not the job.
    :param end: how this process is ended.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        rank: int,
        size: int,
        timeout: float,
        *,
        cut: Callable[[], None] | None = None,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self.rendezvous, self.rank, self.size, self.timeout = rendezvous, rank, size, timeout
        self._cut, self._end, self._judged = cut, end, -1
        # The number of the collective that this worker waits in, or will call next; its name while it waits.
        self._number, self._name, self._since = 0, "", time.monotonic()
        self._answered, self._stopped, self._main = -1, threading.Event(), threading.main_thread().ident
        self._tick, self._grace = _TICK * grace(size) / _GRACE, grace(size)
        with suppress(OSError):  # who this worker is, should it be unable to answer later
            rendezvous.put(f"worker-{rank}", {"pid": os.getpid(), "host": socket.gethostname()})
        self._thread = threading.Thread(target=self._watch, name="gptf-watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def collective(self, name: str) -> Iterator[None]:
        """Around a collective."""
        self._since, self._name = time.monotonic(), name
        try:
            yield
        finally:
            self._name, self._since, self._number = "", time.monotonic(), self._number + 1

    def stop(self) -> None:
        """No longer watch, nor write to the store."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self._tick):
            number, waited = self._number, time.monotonic() - self._since
            if self._cut is not None and self._name and waited > _GRACE / 2 and self._broken():
                self._cut()
            # All workers left the last collective at about the same time, so that all look up in time for an alarm.
            if waited < min(self.timeout / 2, self.timeout - 2 * self._tick):
                continue
            try:
                if self._name and waited >= self.timeout and self._answered != number:
                    self.rendezvous.put(f"alarm-{number}", {"worker": self.rank})
                if self._answered != number and self.rendezvous.get(f"alarm-{number}") is None:
                    continue
                verdict, culprits = self._inquire()
            except OSError as error:
                if waited < self.timeout + self._grace:  # a busy machine may answer the next time
                    continue
                me = f"worker {self.rank} (process {os.getpid()} on {socket.gethostname()})"
                verdict, culprits = f"horovodrun does not answer {me} any more: {error}.", []
            if verdict is None and waited >= 2 * self.timeout and self._name:
                verdict = f"all workers wait in it ({self._name}): the network between them does not work."
            if verdict is not None and self._number == number and not self._stopped.is_set():
                self._finish(number, verdict, culprits)

    def report_broken(self) -> None:
        """Tell the others that this worker's collective has ended with an error: theirs may not."""
        with suppress(OSError):
            self.rendezvous.put("broken", {"worker": self.rank})

    def _broken(self) -> bool:
        with suppress(OSError):
            return self.rendezvous.get("broken") is not None
        return False

    def missing(self) -> str | None:
        """Who does not wait in the collective that this worker is in; None if all do, or if nobody can be asked."""
        with suppress(OSError):
            return self._inquire()[0]
        return None

    def _inquire(self) -> tuple[str | None, list[int]]:
        """Answer the alarm, and say which workers do not wait where most do (of as many, those of the first one)."""
        number = self._number
        self.rendezvous.put(f"alarm-{number}", {"worker": self.rank})
        self.rendezvous.put(f"answer-{number}-{self.rank}", {"name": self._name, "where": self._where()})
        self._answered = number
        until = time.monotonic() + self._grace
        self._await(f"answer-{number}", range(self.size), until)
        answers = [self.rendezvous.get(f"answer-{number}-{rank}") for rank in range(self.size)]
        waiting = [str(answer["name"]) for answer in answers if answer and answer.get("name")]
        if not waiting or self._number != number:
            return None, []
        name = Counter(waiting).most_common(1)[0][0]
        culprits = [rank for rank, answer in enumerate(answers) if not answer or answer.get("name") != name]
        if not culprits:
            self._stopped.wait(until - time.monotonic())
            return None, []
        reasons = " ".join(self._reason(rank, answers[rank]) for rank in culprits[:5])
        more = f" And {len(culprits) - 5} more." if len(culprits) > 5 else ""
        return f"others wait in a {name}, but {reasons}{more}", culprits

    def _reason(self, rank: int, answer: dict[str, Any] | None) -> str:
        who = self.rendezvous.get(f"worker-{rank}") or {}
        name = f"worker {rank} (process {who.get('pid', '?')} on {who.get('host', '?')})"
        if answer is None:
            return f"{name} does not answer: it is stopped, dead or unreachable."
        if answer.get("name"):
            return f"{name} called another one, a {answer['name']}."
        return f"{name} does something else, at {answer.get('where', '?')}."

    def _where(self) -> str:
        """The line that the main thread is at."""
        frame = sys._current_frames().get(self._main or 0)
        return "?" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"

    def _finish(self, number: int, verdict: str, culprits: list[int]) -> None:
        others_go_on = self._cut is not None and bool(culprits)
        message = (
            f"{'Note' if others_go_on else 'Error'}: All workers must join a collective within {self.timeout:g} s. "
            f"In collective {number}, {verdict}{' The others go on.' if others_go_on else ''}"
        )
        if self._judged != number:
            with suppress(OSError):  # nobody may listen any more, if the network is gone
                print(message, file=sys.stderr, flush=True)  # noqa: T201
        self._judged = number
        self._wait_for_the_others(number)
        with suppress(OSError):
            for rank in culprits:  # those that cannot end themselves: their guardians do
                self.rendezvous.put(f"accused-{rank}", {})
        if not others_go_on or self.rank in culprits:
            self._end(EXIT_CODE)

    def _wait_for_the_others(self, number: int) -> None:
        """Let every worker that answered print its verdict: horovodrun ends all of them when the first one leaves."""
        with suppress(OSError):
            self.rendezvous.put(f"printed-{number}-{self.rank}", {})
            ranks = [rank for rank in range(self.size) if self.rendezvous.get(f"answer-{number}-{rank}") is not None]
            self._await(f"printed-{number}", ranks, time.monotonic() + self._grace)

    def _await(self, key: str, ranks: Iterable[int], until: float) -> None:
        """Return when all of these workers have written this, or then."""
        left = list(ranks)
        while left and time.monotonic() < until and not self._stopped.wait(self._tick):
            left = [rank for rank in left if self.rendezvous.get(f"{key}-{rank}") is None]
