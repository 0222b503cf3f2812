"""The default method under a real horovodrun: the chain of one process, and a signal that all workers answer."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from jobs import GPTF, ElasticJob, Job

from gptf_gpytorch import FittedModel
from gptf_gpytorch.serving.predictions import predict

pytest.importorskip("horovod", reason="Horovod is not installed: make horovod (Python 3.11)")
pytestmark = pytest.mark.timeout(300)
SMALL = ["--effort", "quick", "--pairs", 1, "--products", 1, "--samples", 3]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cells = torch.cartesian_prod(torch.arange(12), torch.arange(10), torch.arange(8)).tolist()
    rows = [f"u{a},{b},{c},{(a % 5) * (b % 3) - c}" for a, b, c in cells]
    path = tmp_path_factory.mktemp("data") / "ratings.csv"
    path.write_text("\n".join(["user,item,day,value", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "run"
    command = [GPTF, "train", data, *SMALL, "--sweeps", 9, "--output", folder, "--quiet"]
    subprocess.run([str(part) for part in command], check=True, timeout=120)
    return folder


def predictions(folder: Path) -> torch.Tensor:
    fitted = FittedModel.load(folder)
    return predict(fitted, torch.cartesian_prod(torch.arange(12), torch.arange(10), torch.arange(8))).mean


def test_two_workers_sample_the_chain_of_one_process(data: Path, alone: Path, tmp_path: Path) -> None:
    text = Job(2, GPTF, "train", data, *SMALL, "--sweeps", 9, "--output", tmp_path / "run").finish()
    assert "2 workers" in text
    # Rows are kept in single precision; a chain keeps its rounding for so few sweeps.
    torch.testing.assert_close(predictions(tmp_path / "run"), predictions(alone), rtol=1e-4, atol=1e-4)


def test_a_signal_to_one_worker_stops_all_and_the_run_resumes_to_the_same_bits(data: Path, tmp_path: Path) -> None:
    command = [GPTF, "train", data, *SMALL, "--sweeps", 150, "--output"]
    job = Job(2, *command, tmp_path / "run")
    job.wait_for("together these predict")
    os.kill(job.worker(1), signal.SIGTERM)
    text = job.finish(code=None)
    assert "Stopped by a signal to worker 1 after sweep" in text
    Job(2, *command, tmp_path / "run", "--resume").finish()
    Job(2, *command, tmp_path / "whole").finish()
    assert torch.equal(predictions(tmp_path / "run"), predictions(tmp_path / "whole"))


def test_a_worker_that_is_killed_leaves_the_others_to_go_on(data: Path, tmp_path: Path) -> None:
    command = [GPTF, "train", data, *SMALL, "--sweeps", 150, "--elastic", "--output", tmp_path / "run"]
    job = ElasticJob(tmp_path, 2, *command)
    job.wait_for("together these predict")
    os.kill(job.worker(1), signal.SIGKILL)
    job.wait_for("Workers that go on: 1; resumed after sweep")
    job.finish()
    assert bool(torch.isfinite(predictions(tmp_path / "run")).all())
