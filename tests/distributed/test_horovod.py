"""Horovod itself, with real workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("horovod", reason="Horovod is not installed: make horovod (Python 3.11)")
HERE = Path(__file__).parent
HOROVODRUN = Path(sys.executable).with_name("horovodrun")


def test_two_workers_sum() -> None:
    command = [HOROVODRUN, "-np", "2", "--gloo", sys.executable, str(HERE / "allreduce.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert f"worker {rank} of 2: allreduce is right" in done.stdout


def test_workers_on_one_machine_share_its_cores() -> None:
    program = "from gptf_gpytorch.distributed import threads; print(*(fact.value for fact in threads.describe()))"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    cores = torch.get_num_threads()
    for given, expected in ((None, max(1, cores // 2)), (str(cores), cores)):
        command = [HOROVODRUN, "-np", "2", "--gloo", sys.executable, "-c", program]
        extra = {"OMP_NUM_THREADS": given} if given else {}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment | extra)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(f"{expected} chunk") == 2, done.stdout
