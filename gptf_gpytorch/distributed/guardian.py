"""Ends a worker that cannot end itself any more: it is stopped, or hangs and keeps the interpreter to itself.

A small process beside each worker, which hears twice a second that the worker is alive. When it hears nothing, it looks
whether the others have said, in the key-value store of ``horovodrun``'s rendezvous, that they wait for this worker in vain.
Then it kills it, and ``horovodrun`` sees what it can deal with: a worker that is dead. It imports nothing but the standard
library, and ends with its worker.
"""

import http.client
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress

# Seconds between two signs of life, and of silence before the store is asked.
_TICK, _SILENCE = 0.5, 2.0


class Guardian:
    """This worker's.

    :param host: of the store.
    :param port: of the store.
    :param patience: seconds of silence after which the worker is killed even if nobody asks for it.
    """

    def __init__(self, host: str, port: int, patience: float) -> None:
        #: What the others write to the store when this worker must go.
        self.key = "nobody"
        self._stopped = threading.Event()
        command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), host, str(port), str(patience)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # It is none of Horovod's workers.
            env={name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")},
        )
        threading.Thread(target=self._live, name="gptf-guardian", daemon=True).start()

    def _live(self) -> None:
        pipe = self._process.stdin
        while pipe is not None and not self._stopped.wait(_TICK):
            with suppress(OSError, ValueError):  # the guardian may have been killed
                os.write(pipe.fileno(), f"{self.key}\n".encode())

    def stop(self) -> None:
        """Guard no longer."""
        self._stopped.set()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def guard(worker: int, host: str, port: int, patience: float) -> None:
    """Listen until the worker, which is the parent of this process, ends or has to be killed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the worker
    silence, key = 0.0, ""
    # The worker's children may hold the pipe open when it is dead; then another process is the parent.
    while os.getppid() == worker:
        heard = select.select([0], [], [], _TICK)[0]
        if heard:
            words = os.read(0, 2**16).split()
            if not words:
                return
            silence, key = 0.0, words[-1].decode()
            continue
        silence += _TICK  # no clock: nobody was silent while the whole machine slept
        if silence >= patience or (silence >= _SILENCE and _wanted(host, port, key)):
            os.kill(worker, signal.SIGKILL)
            return


def _wanted(host: str, port: int, key: str) -> bool:
    """Whether the store has the key."""
    connection = http.client.HTTPConnection(host, port, timeout=1.0)
    try:
        connection.request("GET", f"/gptf/{key}")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
