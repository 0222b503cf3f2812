"""Real jobs: training in lockstep, errors on all workers, signals, and a watchdog that ends what hangs."""

import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import GPTF, HERE, Job, errors, results

from gptf_gpytorch.training.checkpoints import Checkpoints

pytest.importorskip("horovod", reason="Horovod is not installed: make horovod (Python 3.11)")
pytestmark = pytest.mark.timeout(300)
SMALL = ["--method", "paper", "--inducing", 10, "--rank", 2]
ENDLESS = [*SMALL, "--max-iterations", 10**6, "--tolerance", 0, "--gradient-tolerance", 0]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(0)
    folder = tmp_path_factory.mktemp("data")
    cells = torch.cartesian_prod(torch.arange(12), torch.arange(10), torch.arange(8))
    noise = torch.randn(len(cells), generator=generator)
    rows = [
        f"u{a},{b},{c},{a * b % 7 - c + e:.6f}" for (a, b, c), e in zip(cells.tolist(), noise.tolist(), strict=True)
    ]
    (folder / "ratings.csv").write_text("\n".join(["user,item,day,value", *rows]) + "\n")
    return folder / "ratings.csv"


@contextmanager
def tiny_disk(folder: Path) -> Iterator[None]:
    """A disk that is soon full, where one can be mounted."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        folder.rmdir()
    try:
        yield
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", folder], check=True)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("fits")
    (folder / "file").write_text("")
    with tiny_disk(folder / "tiny"):
        found = results(Job(2, sys.executable, HERE / "fits.py", folder).finish())
        if "full" in found[0]:
            Checkpoints(folder / "tiny").load_last()  # the one before
    assert (folder / "worker-0").exists()
    assert not (folder / "worker-1").exists(), "only worker 0 writes"
    return found


def test_every_optimiser_is_in_lockstep(reports: dict[int, dict[str, Any]]) -> None:
    for name in ("gd", "adam", "lbfgs", "fewer entries than workers", "whole", "time"):
        assert reports[0][name] == reports[1][name], name
        assert reports[0][name][3], "the entries of all workers are counted, also if this one has none"
    assert reports[0]["time"][2] == "0.5 seconds were over"


def test_resumed_workers_that_do_not_see_the_folder_end_at_the_same_bits(reports: dict[int, dict[str, Any]]) -> None:
    for rank in range(2):
        assert reports[rank]["resumed"] == reports[0]["whole"]
        assert reports[rank]["damaged"] == reports[0]["whole"], "from the checkpoint before the damaged one"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "seed",
            r"InputError: All workers must run the same job: seed must be 0, as on worker 0\. Got 1 on worker 1\.",
        ),
        ("data", r"InputError: .*the number of entries must be 72, as on worker 0\. Got 71 on worker 1"),
        ("again", r"CheckpointError: Worker 0: A new run needs a folder without checkpoints"),
        ("lock", r"CheckpointError: Worker 0: The output folder must be writable"),
        ("locked", r"CheckpointError: Worker 0: A folder is for one run at a time"),
        ("all damaged", r"CheckpointError: Worker 0: .*state.safetensors must be what was saved"),
        ("full", r"CheckpointError: Worker 0: The checkpoint must fit and be writable\. .*No space left"),
        ("nan", r"NumericalError: .*Got NaN or infinity in entries \d+ to \d+ of worker 1's shard"),
        ("disk", r"CheckpointError: Worker 0: The checkpoint must fit and be writable"),
        ("one fails", r"WorkerError: Worker 1: MemoryError: no memory"),
    ],
)
def test_an_error_on_one_worker_is_the_same_on_all(reports: dict[int, dict[str, Any]], name: str, message: str) -> None:
    if name == "full" and name not in reports[0]:
        pytest.skip("mounting a tiny tmpfs needs root")
    assert re.match(message, reports[0][name]), reports[0][name]
    assert reports[1][name] == reports[0][name]


#: Seconds for steps of 3 s at most: the timeout, five seconds, and the steps before.
SECONDS = 3.0 + 5.0 + 0.5


def ended(go: Path) -> dict[str, tuple[float, str]]:
    """How long each job took to end after its fault, and what it said: all at once, because mostly they wait."""
    faults = {"hang": 2, "hold": 2, "stop": 2, "other": 2, "first": 3, "kill": 2}
    jobs = {fault: Job(size, sys.executable, HERE / "faulty.py", fault, go) for fault, size in faults.items()}
    for job in jobs.values():
        job.wait_for("under way")
    stopped, killed = jobs["stop"].worker(1), jobs["kill"].worker(1)
    began, seconds = time.monotonic(), {}
    go.touch()
    os.kill(stopped, signal.SIGSTOP)
    os.kill(killed, signal.SIGKILL)
    while len(seconds) < len(jobs) and time.monotonic() < began + 30.0:
        for fault, job in jobs.items():
            if job.launcher.poll() is not None:
                seconds.setdefault(fault, time.monotonic() - began)
        time.sleep(0.05)
    texts = {fault: job.finish(code=1, seconds=1.0) for fault, job in jobs.items()}
    return {fault: (seconds[fault], text) for fault, text in texts.items()}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float, str]]:
    """The faults of all kinds. A machine that was too busy to end thirteen workers in time gets a second try."""
    folder = tmp_path_factory.mktemp("faults")
    found = ended(folder / "go")
    return found if max(seconds for seconds, _ in found.values()) < SECONDS else ended(folder / "again")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("hang", r"worker 1 \(process \d+ on .*\) does something else, at faulty\.py:\d+"),
        ("hold", r"worker 1 \(process \d+ on .*\) does not answer: it is stopped, dead or unreachable"),
        ("stop", r"worker 1 \(process \d+ on .*\) does not answer: it is stopped, dead or unreachable"),
        ("other", r"worker 1 \(process \d+ on .*\) called another one, a broadcast of 7 torch.float32 from worker 1"),
        (
            "first",
            r"but worker 0 \(process \d+ on .*\) called another one, a broadcast of 7 torch.float32 from worker 1\.$",
        ),
    ],
)
def test_a_worker_that_does_not_come_ends_the_job(
    faulty: dict[str, tuple[float, str]], fault: str, message: str
) -> None:
    seconds, text = faulty[fault]
    assert seconds < SECONDS, text
    found = errors(text)
    assert set(found) == {"hold": {0}, "stop": {0}, "first": {0, 1, 2}}.get(fault, {0, 1}), text
    for rank in found:
        assert re.search(message, found[rank]), text


def test_a_worker_that_is_killed_ends_the_job(faulty: dict[str, tuple[float, str]]) -> None:
    seconds, text = faulty["kill"]
    assert seconds < SECONDS, text


LEAVES = """
import sys, time
from gptf_gpytorch.distributed import current
workers = current(timeout=30)
if workers.rank == 0:
    time.sleep(2)
    print("saved", flush=True)
workers.close()
sys.exit(3)
"""


def test_no_worker_leaves_before_worker_0_has_written() -> None:
    """horovodrun ends all workers as soon as one has left with an error."""
    assert "[0]<stdout>:saved" in Job(2, sys.executable, "-c", LEAVES).finish(code=1)


@pytest.mark.parametrize("target", ["worker", "horovodrun"])
def test_a_signal_is_answered_by_all_with_one_checkpoint(data: Path, tmp_path: Path, target: str) -> None:
    command = [GPTF, "train", data, *ENDLESS, "--output", tmp_path / "run"]
    job = Job(2, *command)
    job.wait_for("step 10 ")
    began = time.monotonic()
    os.kill(job.worker(1) if target == "worker" else job.launcher.pid, signal.SIGTERM)
    text = job.finish(code=1)
    assert time.monotonic() - began < 10.0
    assert len(re.findall(r"Resume: horovodrun -np 2 \S*gptf train ", text)) == 1, text
    assert re.search(r"\[0\]<stderr>:Stopped by a signal to worker \d after step \d+\.", text), text
    if target == "worker":
        step = int(re.search(r"after step (\d+)\.", text)[1])
        more = [*command, "--resume", "--max-iterations", step + 3]
        text = Job(2, *more).finish()
        assert f"done after {step + 3} steps" in text
        assert not re.search(r"^\[1\]<std", text, re.M), "only worker 0 prints"


def test_a_bad_file_on_one_worker_is_one_line_on_all(data: Path, tmp_path: Path) -> None:
    lines = data.read_text().splitlines()
    for rank, value in enumerate(("1.0", "oops")):
        (tmp_path / f"part{rank}.csv").write_text("\n".join([*lines[:20], f"u1,1,99,{value}"]) + "\n")
    job = Job(2, "sh", "-c", f"'{GPTF}' train part$HOROVOD_RANK.csv", cwd=tmp_path, **{"MY_PASSWORD": "hunter2"})
    text = job.finish(code=1)
    found = errors(text)
    assert found[0] == found[1], text
    assert "Worker 1: " in found[0]
    assert "oops" in found[0]
    assert "part1.csv" in found[0]
    assert not re.search(r"^\[\d\]<stderr>:Traceback", text, re.M)
    assert text.count("Note: horovodrun shows MY_PASSWORD to every user") == 1
    assert "hunter2" not in text


def test_the_readmes_commands_run(tmp_path: Path) -> None:
    """The first, for one process, and the second, for workers; the third needs several hosts."""
    readme = (HERE.parents[1] / "README.md").read_text()
    one, many, _ = re.search(r"^```\n(gptf train .*\nhorovodrun .*\nhorovodrun .*)\n```", readme, re.M)[1].splitlines()
    cells = torch.cartesian_prod(torch.arange(20), torch.arange(15), torch.arange(10))
    chosen = cells[torch.randperm(len(cells), generator=torch.Generator().manual_seed(0))[:150]]
    rows = [f"u{user},{ad},{page},1" for user, ad, page in chosen.tolist()]
    (tmp_path / "clicks.csv").write_text("\n".join(["user,ad,page,value", *rows]) + "\n")
    for line in (one, many):
        words = shlex.split(line, comments=True)
        assert words[words.index("gptf") :][:2] == ["gptf", "train"]
        words[words.index("gptf")] = str(GPTF)
        output = words[-1] + str(len(words))  # a folder of its own
        words[-1:] = [output, "--effort", "quick", "--sweeps", "5"]
        if words[0] == "horovodrun":
            text = Job(int(words[2]), *words[3:], cwd=tmp_path).finish()
            assert "300 entries of 20 user x 15 ad x 10 page, 60 held out; probit, sampled, effort quick" in text
            assert "on 60 held-out entries: together these predict them best, and run on all 300 entries" in text
            assert ", 2 workers" in text
        else:
            subprocess.run(words, check=True, cwd=tmp_path, capture_output=True, timeout=120)
        assert (tmp_path / output / "model").is_dir()


ASKED = """
import signal, sys, time
from gptf_gpytorch.distributed.supervisor import go_on_in_child
go_on_in_child()
def answer(number, frame):
    print("asked", flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, answer)
print("ready", flush=True)
time.sleep(60)
"""


def test_a_worker_without_a_shell_above_it_is_asked_before_it_is_stopped() -> None:
    """What horovodrun does to a job, where /bin/sh has become the worker."""
    terminate = importlib.import_module(
        "horovod.runner.common.util.safe_shell_exec"
    ).terminate_executor_shell_and_children
    with subprocess.Popen([sys.executable, "-c", ASKED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        terminate(process.pid)
        assert process.stdout.read() == "asked\n"


def test_the_script_for_horovod_users(data: Path) -> None:
    script = HERE.parents[1] / "experiments" / "train_horovod.py"
    alone = subprocess.run(
        [sys.executable, script, data, "20"], capture_output=True, text=True, check=True, timeout=120
    )
    text = Job(2, sys.executable, script, data, 20).finish()
    bounds = [re.findall(r"step 10  bound (\S+)", out) for out in (alone.stdout, text)]
    assert len(bounds[0]) == len(bounds[1]) == 1, "only worker 0 prints"
    assert float(bounds[0][0]) == pytest.approx(float(bounds[1][0]), abs=2e-6), "the same start, the same steps"
    assert "on 2 worker(s)" in text
