"""Real MLflow servers, on loopback, for the length of a test."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
        until = time.monotonic() + 180.0  # a busy machine takes minutes
        while self.process.poll() is None and time.monotonic() < until:
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
def proxy(server: Server, before: Callable[[str, str], None]) -> Iterator[str]:
    """The address of one that hands every request on, and says its method and path before."""

    class Hand(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            before(self.command, self.path)
            with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as there:
                try:
                    there.request(self.command, self.path, body, dict(self.headers))
                    answer = there.getresponse()
                    content = answer.read()
                except OSError:
                    return self.send_error(502)
            with suppress(OSError):  # whoever asked may have given up
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.getheader("Content-Type", "text/plain"))
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one

    with ThreadingHTTPServer(("127.0.0.1", 0), Hand) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


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
