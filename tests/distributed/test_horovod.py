"""Horovod itself, with real workers."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("horovod", reason="Horovod is not installed: make horovod (Python 3.11)")
HERE = Path(__file__).parent
HOROVODRUN = Path(sys.executable).with_name("horovodrun")


def test_two_workers_sum() -> None:
    command = [HOROVODRUN, "-np", "2", "--gloo", sys.executable, str(HERE / "allreduce.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert f"worker {rank} of 2: allreduce is right" in done.stdout
