"""Real horovodrun jobs: started, bounded in time, and searched for processes that they leave behind."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
GPTF = Path(sys.executable).with_name("gptf")


class Job:
    """``horovodrun -np size command``; the output of all workers goes to one file."""

    def __init__(self, size: int, *command: object, cwd: Path | None = None, **environment: str) -> None:
        self.mark = f"GPTF_TEST_JOB={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        env = {**os.environ, "OMP_NUM_THREADS": "1", **environment, name: value}
        self.launcher = subprocess.Popen(
            [HOROVODRUN, "-np", str(size), "--gloo", *map(str, command)],
            stdout=self.log, stderr=subprocess.STDOUT, env=env, cwd=cwd, start_new_session=True,
        )  # fmt: skip

    def processes(self) -> dict[int, dict[str, str]]:
        """Every process of the job that is alive, with its environment."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                if self.mark in words and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found[int(folder.name)] = dict(word.split("=", 1) for word in words if "=" in word)
            except OSError:
                continue
        return found

    def worker(self, rank: int) -> int:
        """The process of a worker: the last one that was told its rank."""
        return max(pid for pid, env in self.processes().items() if env.get("HOROVOD_RANK") == str(rank))

    def text(self) -> str:
        self.log.flush()
        return Path(f"/proc/self/fd/{self.log.fileno()}").read_text()

    def wait_for(self, words: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while words not in self.text():
            assert self.launcher.poll() is None, self.text()
            assert time.monotonic() < end, self.text()
            time.sleep(0.05)

    def finish(self, code: int = 0, seconds: float = 90.0) -> str:
        """The output of a job that ends with this code in time and leaves nothing behind."""
        try:
            found = self.launcher.wait(seconds)
            end = time.monotonic() + 2.0
            while (left := self.processes()) and time.monotonic() < end:
                time.sleep(0.05)
            assert not left, f"left behind: {list(left)}\n{self.text()}"
        finally:
            for pid in self.processes():
                os.kill(pid, signal.SIGKILL)
            self.launcher.wait(10)
            text = self.text()
            self.log.close()
        assert found == code, text
        return text


def results(text: str) -> dict[int, Any]:
    """What each worker printed after RESULT."""
    return {int(rank): json.loads(found) for rank, found in re.findall(r"^\[(\d+)\]<stdout>:RESULT (.*)$", text, re.M)}


def errors(text: str) -> dict[int, str]:
    """The last error line of each worker."""
    return {int(rank): found for rank, found in re.findall(r"^\[(\d+)\]<stderr>:(Error: .*)$", text, re.M)}
