"""Real horovodrun jobs: started, bounded in time, and searched for processes that they leave behind."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
GPTF = Path(sys.executable).with_name("gptf")
#: All of them are this machine: names of hosts do not depend on the case.
NAMES = [
    "".join(letter.upper() if bits >> place & 1 else letter for place, letter in enumerate("localhost"))
    for bits in range(2**9)
]


class Job:
    """``horovodrun -np size command``; the output of all workers goes to one file.

    :param inside: what the command line begins with, where it is to run on another host.
    """

    def __init__(
        self, size: int, *command: object, cwd: Path | None = None, inside: Sequence[str] = (), **environment: str
    ) -> None:
        self.mark = f"GPTF_TEST_JOB={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        env = {**os.environ, "OMP_NUM_THREADS": "1", **environment, name: value}
        self.launcher = subprocess.Popen(
            [*inside, HOROVODRUN, "-np", str(size), "--gloo", *map(str, command)],
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

    def worker_on(self, host: str) -> int:
        """The process of the worker on a host."""
        return max(pid for pid, env in self.processes().items() if env.get("HOROVOD_HOSTNAME") == host)

    def text(self) -> str:
        self.log.flush()
        return Path(f"/proc/self/fd/{self.log.fileno()}").read_text()

    def wait_for(self, words: str, seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while words not in self.text():
            if self.launcher.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{words!r} must come within {seconds:g} s. Got:\n{self.end()}")
            time.sleep(0.05)

    def finish(self, code: int | None = 0, seconds: float = 90.0, patience: float = 2.0) -> str:
        """The output of a job that ends with this code in time and leaves nothing behind.

        :param code: None for any.
        :param patience: seconds that its processes may outlive horovodrun.
        """
        try:
            found = self.launcher.wait(seconds)
            end = time.monotonic() + patience
            while (left := self.processes()) and time.monotonic() < end:
                time.sleep(0.05)
            assert not left, f"left behind: {list(left)}\n{self.text()}"
        finally:
            text = self.end()
        assert code is None or found == code, text
        return text

    def end(self) -> str:
        """Kill what is left of the job; its output."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.launcher.wait(10)
        text = self.text()
        self.log.close()
        return text


class ElasticJob(Job):
    """An elastic job of ``size`` workers on hosts that are all this machine, each under a name of its own.

    A death makes ``horovodrun`` avoid its host from then on, so every worker needs a host that is called otherwise.

    :param folder: for the list of hosts.
    :param most: workers at a time, ``size`` unless it is said.
    """

    def __init__(self, folder: Path, size: int, *command: object, most: int | None = None, **options: Any) -> None:
        self._hosts, self._names = folder / "hosts", iter(NAMES)
        self.offer(size)
        script = folder / "discover.sh"
        script.write_text(f"#!/bin/sh\ncat {shlex.quote(str(self._hosts))}\n")
        script.chmod(0o755)
        flags = ["--min-np", 1, "--max-np", most or size, "--host-discovery-script", script]
        super().__init__(size, *flags, "--network-interfaces", "lo", *command, **options)

    def offer(self, count: int = 1) -> str:
        """Let more hosts be found; the name of the last one."""
        names = [next(self._names) for _ in range(count)]
        self._list([*self._listed(), *names])
        return names[-1]

    def withdraw(self, host: str) -> None:
        """Let a host be found no more."""
        self._list([name for name in self._listed() if name != host])

    def _listed(self) -> list[str]:
        lines = self._hosts.read_text().splitlines() if self._hosts.exists() else []
        return [line.removesuffix(":1") for line in lines]

    def _list(self, names: list[str]) -> None:
        draft = self._hosts.with_suffix(".new")
        draft.write_text("".join(f"{name}:1\n" for name in names))
        draft.rename(self._hosts)


def results(text: str) -> dict[int, Any]:
    """What each worker printed after RESULT."""
    return {int(rank): json.loads(found) for rank, found in re.findall(r"^\[(\d+)\]<stdout>:RESULT (.*)$", text, re.M)}


def assert_agreement(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """What workers printed of a problem, against one process: the bound to 1e-12, the gradient to 1e-8."""
    assert len(found) > 1
    for name, mine in found.items():
        (bound, gradient), (reference, direction) = _numbers(mine), _numbers(expected[name])
        assert abs(bound - reference) <= 1e-12 * abs(reference), name
        assert float((gradient - direction).norm()) <= 1e-8 * float(direction.norm()), name


def _numbers(found: dict[str, Any]) -> tuple[float, torch.Tensor]:
    gradient = [float.fromhex(number) for number in found["gradient"]]
    return float.fromhex(found["bound"]), torch.tensor(gradient, dtype=torch.float64)


def errors(text: str) -> dict[int, str]:
    """The last error line of each worker."""
    return {int(rank): found for rank, found in re.findall(r"^\[(\d+)\]<stderr>:(Error: .*)$", text, re.M)}
