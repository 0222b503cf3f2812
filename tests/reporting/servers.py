"""Real MLflow servers, on loopback, for the length of a test."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A process with children, that answers on a port."""

    def __init__(
        self, command: Sequence[object], port: int, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.command, self.port, self.log = [str(word) for word in command], port, log
        self.environment = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, path: str = "/health") -> "Server":
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, start_new_session=True, env=self.environment
            )
        for _ in range(600):
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(self.uri + path, timeout=2):
                    return self
            except urllib.error.HTTPError:
                return self
            except OSError:
                time.sleep(0.1)
        self.kill()
        raise RuntimeError(f"{self.command[0]} does not answer: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """kill -9, of all its processes."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(20)
            self.process = None


@contextmanager
def running(server: Server) -> Iterator[Server]:
    try:
        yield server.start()
    finally:
        server.kill()


def tracking_server(folder: Path) -> Server:
    """The one that mlflow/server.sh starts."""
    port = free_port()
    return Server([ROOT / "mlflow" / "server.sh", folder / "store", port], port, folder / "server.log")


def tool(name: str) -> Path:
    """A command of this environment."""
    return Path(sys.executable).with_name(name)
