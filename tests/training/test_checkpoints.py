"""Checkpoints: what was saved comes back, anything else is refused, and a crash costs at most the one being written."""

import itertools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from gptf_gpytorch.errors import CheckpointError
from gptf_gpytorch.training import checkpoints
from gptf_gpytorch.training.checkpoints import Checkpoints

CORRUPTIONS, KILLS = 10_000, 200


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(7, 3, generator=generator, dtype=torch.float64),
        "b": torch.tensor(3),
        "c": torch.tensor([True, False]),
    }


def assert_loads(folder: Path, seed: int) -> None:
    found, run = checkpoints.load(folder)
    assert run == {"step": seed, "text": "ä"}
    for name, tensor in tensors(seed).items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype


def save(folder: Path, seed: int = 0) -> Path:
    checkpoints.save(folder, tensors(seed), {"step": seed, "text": "ä"})
    return folder


def test_what_was_saved_comes_back_and_is_replaced_by_the_next(tmp_path: Path) -> None:
    for seed in (0, 1):
        assert_loads(save(tmp_path / "one", seed), seed)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_random_corruptions_are_all_refused(tmp_path: Path) -> None:
    folder, generator = save(tmp_path / "one"), np.random.default_rng(0)
    contents = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    paths = list(contents)
    for _ in range(CORRUPTIONS):
        path = paths[generator.integers(len(paths))]
        content = bytearray(contents[path])
        kind, place = generator.integers(4), int(generator.integers(len(content)))
        if kind == 0:
            content[place] ^= 1 << int(generator.integers(8))
        elif kind == 1:
            del content[place:]
        elif kind == 2:
            content[place:place] = generator.bytes(1 + int(generator.integers(8)))
        else:
            content[place] = (content[place] + 1 + int(generator.integers(255))) % 256
        path.write_bytes(content)
        with pytest.raises(CheckpointError):
            checkpoints.load(folder)
        path.write_bytes(contents[path])
    assert_loads(folder, 0)


def test_a_missing_or_foreign_folder_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "one")
    for name in ("state.safetensors", "run.json", "manifest.json"):
        copy = shutil.copytree(folder, tmp_path / f"without {name}")
        (copy / name).unlink()
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            checkpoints.load(copy)
    with pytest.raises(CheckpointError, match=r"must be a folder that was saved whole. Got .*nothing"):
        checkpoints.load(tmp_path / "nothing")


class Evil:
    def __reduce__(self) -> tuple:
        return os.mkdir, (os.environ["EVIL"],)


def test_a_pickle_is_never_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVIL", str(tmp_path / "executed"))
    (tmp_path / "file").write_bytes(pickle.dumps(Evil()))
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("state.safetensors", "run.json", "manifest.json"):
        (folder / name).write_bytes(pickle.dumps(Evil()))
    for path in (tmp_path / "file", folder):
        with pytest.raises(CheckpointError):
            checkpoints.load(path)
    assert not (tmp_path / "executed").exists()


def test_the_last_ones_are_kept_and_a_broken_one_is_passed_over(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, keep=2)
    with pytest.raises(CheckpointError, match=r"There must be a checkpoint to resume from. Got none"):
        kept.load_last()
    for step in (1, 2, 3):
        kept.save(step, tensors(step), {"step": step, "text": "ä"})
    assert kept.steps() == [2, 3]
    state = tmp_path / "step-00000003" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"step-00000003.damaged now; the one before it is taken"):
        assert kept.load_last()[1]["step"] == 2
    assert kept.steps() == [2]


@pytest.mark.parametrize("stop", [1, 2])
def test_a_save_that_was_stopped_between_two_renames_is_mended(
    tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft gets its name, the old one moves aside, the new one takes its place: a kill before the second or third."""
    kept, original, renames = Checkpoints(tmp_path), Path.rename, itertools.count()
    kept.save(5, tensors(5), {"text": "old"})

    def stopping(self: Path, target: Path) -> Path:
        if next(renames) == stop:
            raise KeyboardInterrupt
        return original(self, target)

    monkeypatch.setattr(Path, "rename", stopping)
    with pytest.raises(KeyboardInterrupt):
        kept.save(5, tensors(5), {"text": "new"})
    monkeypatch.undo()
    expected = {1: "old", 2: "new"}[stop]
    assert checkpoints.load(tmp_path / "step-00000005")[1]["text"] == expected
    with kept.lock():
        assert kept.load_last()[1]["text"] == expected
        assert {path.name for path in tmp_path.iterdir()} == {"step-00000005", ".lock"}


def test_two_runs_cannot_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / ".step-00000007.new.left").mkdir()
    with (
        Checkpoints(tmp_path).lock(),
        pytest.raises(CheckpointError, match="one run at a time"),
        Checkpoints(tmp_path).lock(),
    ):
        pass
    with Checkpoints(tmp_path).lock():
        assert [path.name for path in tmp_path.iterdir()] == [".lock"], "what a killed run left is removed"


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="output folder must be writable"), Checkpoints(tmp_path / "file").lock():
        pass


def test_kills_while_saving_leave_a_checkpoint_that_loads(tmp_path: Path) -> None:
    """Forks of a warm process save without end and are killed at any moment: the newest checkpoint must load."""
    generator, step = np.random.default_rng(0), 0
    command = [sys.executable, "-c", FORKER, str(tmp_path), str(Path(__file__).parent), str(KILLS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(KILLS):
            pid = int(process.stdout.readline())
            time.sleep(float(generator.uniform(0.0, 0.03)))
            os.kill(pid, signal.SIGKILL)
            assert process.stdout.readline().strip() == "killed"
            kept = Checkpoints(tmp_path, keep=2)
            if kept.steps():
                found, run = kept.load_last()
                assert run["step"] >= step, "a checkpoint was lost"
                step = run["step"]
                assert torch.equal(found["a"], tensors(step)["a"])
    assert process.returncode == 0
    assert step > KILLS / 50, "the saves were not under way"


FORKER = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_checkpoints import tensors
from gptf_gpytorch.training.checkpoints import Checkpoints
kept = Checkpoints(Path(sys.argv[1]), keep=2)
for _ in range(int(sys.argv[3])):
    pid = os.fork()
    if pid == 0:
        step = max(kept.steps(), default=0)
        while True:
            step += 1
            kept.save(step, tensors(step), {"step": step, "text": "\\u00e4"})
    print(pid, flush=True)
    os.waitpid(pid, 0)
    print("killed", flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tiny tmpfs needs root")
def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        kept = Checkpoints(disk, keep=2)
        kept.save(1, tensors(1), {"step": 1, "text": "ä"})
        with pytest.raises(CheckpointError, match="No space left"):
            kept.save(2, {"big": torch.zeros(100_000, dtype=torch.float64)}, {"step": 2})
        assert_loads(disk / "step-00000001", 1)
        assert kept.load_last()[1]["step"] == 1
        kept.save(3, tensors(3), {"step": 3, "text": "ä"})
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_job_knows_a_folder_that_another_of_its_workers_held(tmp_path: Path) -> None:
    for job, taken_over in (
        ("one", False),
        ("one", True),
        ("other", False),
        ("", False),
        ("", False),
        ("other", False),
    ):
        with Checkpoints(tmp_path).lock(job) as found:
            assert found == taken_over


@pytest.mark.parametrize("name", ["notes.old", "notes.new", ".models", ".step-by-step", "step-tutorial"])
def test_what_a_run_did_not_write_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.tex").write_text("years of work")
    kept = Checkpoints(tmp_path)
    with kept.lock():
        kept.save(1, tensors(1), {"step": 1, "text": "ä"})
    assert (tmp_path / name / "thesis.tex").read_text() == "years of work"
