"""The guardian of a worker: whom it kills, and when it leaves."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

GUARDIAN = Path(__file__).parents[2] / "gptf_gpytorch" / "distributed"
# Nobody listens at port 1: the silence alone counts. A child, which has all open files, outlives the worker.
WORKER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from guardian import Guardian
guardian = Guardian("127.0.0.1", 1, patience=3.0)
child = os.fork()
if child:
    print(guardian._process.pid, child, flush=True)
time.sleep(60)
"""


def wait_for_end(pid: int, seconds: float) -> bool:
    """Whether a process, which may be nobody's child any more, ends in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_silent_worker_is_killed_and_the_guardian_ends_with_it(number: signal.Signals) -> None:
    command = [sys.executable, "-c", WORKER, GUARDIAN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        guardian, child = map(int, worker.stdout.readline().split())
        try:
            time.sleep(4.0)
            assert worker.poll() is None, "it was heard, and longer than a guardian's patience"
            os.kill(guardian, signal.SIGTERM)  # what horovodrun sends to all that it started
            worker.send_signal(number)
            assert worker.wait(15.0) == -signal.SIGKILL
            assert wait_for_end(guardian, 15.0)
        finally:
            os.kill(child, signal.SIGKILL)
            worker.kill()
