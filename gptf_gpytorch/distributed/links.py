"""The connections between workers, which Horovod opens and does not show."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

# A connection breaks when the other machine has not answered for about seven seconds. Its kernel answers, so that a worker
# that is busy does not look like a network that is cut. One that is stopped does, if more was sent to it than it has room
# for. Without TCP_USER_TIMEOUT what could not be sent would be kept for a quarter of an hour.
_OPTIONS = {
    (socket.SOL_SOCKET, "SO_KEEPALIVE"): 1,
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE"): 3,  # seconds
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL"): 1,
    (socket.IPPROTO_TCP, "TCP_KEEPCNT"): 4,
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT"): 7_000,  # milliseconds
}


class Links:
    """Those that a call opens; none where the system does not say (/proc)."""

    def __init__(self, connect: Callable[[], None]) -> None:
        before = _sockets()
        connect()
        self._opened = _sockets().items() - before.items()
        for end in self._ends():
            for (level, name), value in _OPTIONS.items():
                with suppress(OSError, AttributeError):
                    end.setsockopt(level, getattr(socket, name), value)

    def cut(self) -> None:
        """Close them, as far as they are still open."""
        for end in self._ends():
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _ends(self) -> Iterator[socket.socket]:
        for number, name in self._opened:
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{number}") == name:
                    with socket.socket(fileno=os.dup(int(number))) as end:
                        yield end


def _sockets() -> dict[str, str]:
    """The numbers and names of this process's open sockets."""
    found = {}
    with suppress(FileNotFoundError):
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found[number] = os.readlink(f"/proc/self/fd/{number}")
    return {number: name for number, name in found.items() if name.startswith("socket:")}
