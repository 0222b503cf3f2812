"""Elastic jobs: workers are killed, stopped and taken in while the others train on, and nothing that was committed is lost."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import elastic_fits
import pytest
import soak
import torch
from jobs import GPTF, HERE, ElasticJob, Job

from gptf_gpytorch.distributed import SingleProcess
from gptf_gpytorch.training import checkpoints, optimizers
from gptf_gpytorch.training.checkpoints import Checkpoints
from gptf_gpytorch.training.objective import BoundObjective, Scaling
from gptf_gpytorch.training.problem import divide
from gptf_gpytorch.training.saved import FittedModel, build
from gptf_gpytorch.training.state import unpack

pytest.importorskip("horovod", reason="Horovod is not installed: make horovod (Python 3.11)")
pytestmark = pytest.mark.timeout(600)


class Disturbed:
    """A run on two workers: one is killed, a third one comes, the first worker 0 is killed, a fourth one comes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "run"
        self.saved = []
        job = ElasticJob(folder, 2, sys.executable, HERE / "elastic_fits.py", self.folder)
        job.wait_for("step 5.")
        self.kill(job, job.worker(1))
        job.wait_for("A worker is gone")
        third = job.offer()
        job.wait_for("The hosts of the job have changed")
        step = Checkpoints(self.folder).steps()[-1]
        job.wait_for(f"step {step + 5}.")
        self.kill(job, job.worker(0))
        job.wait_for(f"step {step + 15}.")
        assert job.worker_on(third)
        job.offer()
        self.text = job.finish()
        #: After how many steps the workers were how many.
        self.changes = [
            (int(step), int(size)) for size, step in re.findall(r"go on: (\d+); resumed after step (\d+)", self.text)
        ]

    def kill(self, job: ElasticJob, pid: int) -> None:
        self.saved.append(Checkpoints(self.folder).steps()[-1])
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Disturbed:
    return Disturbed(tmp_path_factory.mktemp("elastic"))


def test_workers_are_killed_and_taken_in_and_no_step_is_lost(disturbed: Disturbed) -> None:
    assert [size for _, size in disturbed.changes] == [1, 2, 1, 2], disturbed.text
    for (step, _), saved in zip(disturbed.changes[::2], disturbed.saved, strict=True):
        assert step >= saved, disturbed.text
    history = FittedModel.load(disturbed.folder).history
    assert [step.iteration for step in history.steps] == list(range(1, elastic_fits.CONFIG.max_iterations + 1))


def test_another_number_of_workers_finds_the_same_bound_and_gradient_at_what_was_committed(
    disturbed: Disturbed,
) -> None:
    """At every change: the numbers that two workers committed, in this one process, and the other way round."""
    config, entries = elastic_fits.CONFIG, elastic_fits.entries()
    train, _ = divide(entries, config)
    scaling = Scaling.fitted(train.values, SingleProcess())
    for step, _ in disturbed.changes:
        mll = build(config, entries.shape, len(train))
        objective = BoundObjective(mll, train.indices, scaling.scaled(train.values), train.weights)
        tensors, run = checkpoints.load(disturbed.folder / f"step-{step:08d}")
        progress = unpack(tensors, run["progress"], mll, optimizers.make(config.optimizer, config.learning_rate))
        found = objective(progress.point.x)
        assert found.value == pytest.approx(progress.point.value, rel=1e-12)
        error = (found.gradient - progress.point.gradient).norm() / progress.point.gradient.norm()
        assert float(error) <= 1e-8


@pytest.fixture(scope="module")
def steady(disturbed: Disturbed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run on two workers that stay: `whole`, and `rest` from the last commit at which workers changed."""
    folder = tmp_path_factory.mktemp("steady")
    name = f"step-{disturbed.changes[-1][0]:08d}"
    shutil.copytree(disturbed.folder / name, folder / "rest" / name)
    Job(2, sys.executable, HERE / "elastic_fits.py", folder / "whole", folder / "rest").finish()
    return folder


def test_the_same_number_of_workers_goes_on_from_a_commit_to_the_same_bits(disturbed: Disturbed, steady: Path) -> None:
    """From memory in the elastic job, from the disk on the workers that stay."""
    name = f"step-{elastic_fits.CONFIG.max_iterations:08d}"
    (tensors, _), (expected, _) = (checkpoints.load(folder / name) for folder in (steady / "rest", disturbed.folder))
    assert tensors.keys() == expected.keys()
    for key, tensor in tensors.items():
        assert torch.equal(tensor, expected[key]), key


def test_the_bound_at_the_end_is_that_of_an_undisturbed_run(disturbed: Disturbed, steady: Path) -> None:
    found, expected = (FittedModel.load(folder).history.steps[-1] for folder in (disturbed.folder, steady / "whole"))
    assert found.iteration == expected.iteration
    assert found.bound == pytest.approx(expected.bound, rel=1e-3)


def test_a_few_kills_of_the_soak_lose_nothing(tmp_path: Path) -> None:
    """What `make soak` does a hundred times. How long it takes is not asked here: others may use the machine."""
    found = soak.soak(tmp_path, kills=3, entries=10_000, seed=0)
    assert found["kills"] == 3
    assert found["committed steps lost"] == 0
    assert found["largest relative difference of a job's bound"] <= 1e-3


@pytest.fixture
def data(tmp_path: Path) -> Path:
    entries = elastic_fits.entries()
    rows = [
        f"{a},{b},{c},{value}"
        for (a, b, c), value in zip(entries.indices.tolist(), entries.values.tolist(), strict=True)
    ]
    (tmp_path / "data.csv").write_text("\n".join(["a,b,c,value", *rows]) + "\n")
    return tmp_path / "data.csv"


SMALL = ["--method", "paper", "--inducing", 12, "--rank", 2]
ENDLESS = [*SMALL, "--max-iterations", 10**6, "--tolerance", 0, "--gradient-tolerance", 0]


def test_workers_that_stop_or_are_taken_out_leave_and_the_last_one_answers_a_signal(data: Path, tmp_path: Path) -> None:
    # Long enough for the slowest to start on a busy machine.
    patience = ["--patience", 0, "--timeout", 15]
    command = [GPTF, "train", data, *ENDLESS, *patience, "--elastic", "--output", tmp_path / "run"]
    job = ElasticJob(tmp_path, 3, *command)
    job.wait_for("step 10 ")
    stopped, first = job.worker(1), job.processes()[job.worker(0)]["HOROVOD_HOSTNAME"]
    os.kill(stopped, signal.SIGSTOP)
    job.wait_for("Workers that go on: 2;")
    assert stopped not in job.processes()
    job.withdraw(first)
    job.wait_for("Workers that go on: 1;")
    job.launcher.terminate()
    text = job.finish(code=None)  # horovodrun's own, for it was the one that was told to end
    assert re.search(r"Note: .* worker 1 \(process \d+ on .*\) does not answer: .* The others go on\.", text), text
    assert "has been removed from elastic job" in text
    assert re.search(r"Resume: horovodrun -np 3 \S*gptf train .* --resume", text), text
    last = Checkpoints(tmp_path / "run").steps()[-1]
    assert f"after step {last}. " in text


# A host that was found later starts its worker as slowly as a test likes.
SLOWLY = 'case $HOROVOD_HOSTNAME in localhost|Localhost) ;; *) echo starting; read -r never < fifo ;; esac; exec "$@"'


def test_workers_that_die_while_the_others_wait_for_a_newcomer_do_not_end_the_job(data: Path, tmp_path: Path) -> None:
    """One that would have joined, and the newcomer, which cannot start."""
    os.mkfifo(tmp_path / "fifo")
    command = [GPTF, "train", data, *ENDLESS, "--patience", 0, "--elastic", "--output", tmp_path / "run"]
    job = ElasticJob(tmp_path, 2, "sh", "-c", SLOWLY, "sh", *command, cwd=tmp_path, most=3)
    job.wait_for("step 10 ")
    newcomer = job.offer()
    job.wait_for("starting")
    time.sleep(1.0)  # the others wait for it by now
    os.kill(job.worker(1), signal.SIGKILL)
    time.sleep(1.0)
    os.kill(job.worker_on(newcomer), signal.SIGKILL)
    job.wait_for("Workers that go on: 1;", seconds=20)
    job.launcher.terminate()
    text = job.finish(code=None)
    assert re.search(r"Resume: .*gptf train .* --resume", text), text


def test_a_worker_that_dies_while_they_are_connected_does_not_end_the_job(data: Path, tmp_path: Path) -> None:
    """Horovod aborts all others, and what they had in memory is gone with them."""
    command = ["train", data, *ENDLESS, "--patience", 0, "--elastic", "--output", tmp_path / "run"]
    script = [sys.executable, HERE / "dies_connecting.py"]
    job = ElasticJob(tmp_path, 3, "--gloo-timeout-seconds", 5, *script, *command)
    job.wait_for("step 10 ")
    os.kill(job.worker_on("localhost"), signal.SIGKILL)
    job.wait_for("resumed after step", seconds=60)
    job.launcher.terminate()
    text = job.finish(code=None)
    assert int(re.search(r"resumed after step (\d+)", text)[1]) >= 10, text
    assert f"after step {Checkpoints(tmp_path / 'run').steps()[-1]}. " in text


def test_elastic_needs_an_elastic_job(data: Path) -> None:
    done = subprocess.run([GPTF, "train", data, "--elastic"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(
        r"Error: Elastic training must be started by an elastic horovodrun: horovodrun -np .* Got none\.\n", done.stderr
    )
