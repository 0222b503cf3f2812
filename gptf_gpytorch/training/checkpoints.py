"""Checkpoints: tensors and JSON with a checksum, there whole or not at all, last ones and best one kept.

A checkpoint is a folder of `state.safetensors`, `run.json` and `manifest.json`, which holds the SHA-256 of the others. It is
written under a temporary name, flushed, renamed. Nothing is unpickled.
"""

import fcntl
import json
import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from gptf_gpytorch.data.storage import digest, new_folder
from gptf_gpytorch.distributed.communicator import Communicator
from gptf_gpytorch.distributed.verdicts import together
from gptf_gpytorch.errors import CheckpointError, GPTFError

FORMAT, VERSION = "gptf_gpytorch checkpoint", 1
_STATE, _RUN, _MANIFEST = "state.safetensors", "run.json", "manifest.json"
# What a run may leave in a folder that also holds what is not its own.
MODEL, _STEP = "model", "step-" + 8 * "[0-9]"


def save(
    folder: Path,
    tensors: Mapping[str, Tensor],
    run: Mapping[str, Any],
    files: Mapping[str, Callable[[Path], None]] | None = None,
) -> None:
    """Write a checkpoint, in place of one of that name if there is one.

    :param files: what writes each further file of it.
    """
    try:
        recover(folder)
        draft_name = _beside(folder, "new")
        with new_folder(draft_name) as draft:
            contiguous = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
            safetensors.torch.save_file(contiguous, draft / _STATE)
            (draft / _RUN).write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
            for name, write in (files or {}).items():
                write(draft / name)
            sums = {path.name: digest(path) for path in sorted(draft.iterdir())}
            (draft / _MANIFEST).write_text(_manifest(sums), encoding="utf-8")
        _replace(draft_name, folder)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(f"The checkpoint must fit and be writable. Got {folder}: {reason}.") from error


def load(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the JSON of a checkpoint whose files are what was saved."""
    folder = standing(folder)
    if not folder.is_dir():
        raise CheckpointError(f"A checkpoint must be a folder that was saved whole. Got {folder}.")
    text = _read(folder / _MANIFEST)
    try:
        content = json.loads(text)
        kind, version, sums = content["format"], content["version"], content["sha256"]
        if (kind, version) != (FORMAT, VERSION):
            raise ValueError(f"{kind!r}, version {version!r}")
        if text != _manifest(dict(sums)) or not {_STATE, _RUN} <= set(sums):
            raise ValueError("it was changed")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{folder / _MANIFEST} must be a {FORMAT!r} manifest, version {VERSION}, that was saved whole. Got: {error}."
        ) from error
    for name, expected in sums.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise CheckpointError(f"{folder} must hold every file that its manifest lists. Got no {name}.")
        if digest(path) != expected:
            raise CheckpointError(f"{path} must be what was saved. Got another SHA-256: the file has changed.")
    try:
        tensors = safetensors.torch.load_file(folder / _STATE)
        # In memory of their own, aligned as all tensors are: sums over them must round as they did before.
        return {name: tensor.clone() for name, tensor in tensors.items()}, json.loads(_read(folder / _RUN))
    except (SafetensorError, ValueError, OSError) as error:
        raise CheckpointError(f"{folder} must be a checkpoint that was saved whole. Got: {error}.") from error


def _manifest(sums: dict[str, str]) -> str:
    return json.dumps({"format": FORMAT, "version": VERSION, "sha256": sums}, indent=1) + "\n"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(f"A checkpoint must hold a readable {path.name}. Got {path}: {reason}.") from error


def _replace(draft: Path, folder: Path) -> None:
    """Rename; a folder that is in the way is moved aside first. :func:`recover` mends what is stopped in between."""
    if folder.exists():
        folder.rename(_beside(folder, "old"))
    try:
        draft.rename(folder)
    except OSError:
        recover(folder)
        raise
    shutil.rmtree(_beside(folder, "old"), ignore_errors=True)


def recover(folder: Path) -> None:
    """Give a checkpoint its name back after a save that was stopped between two renames; remove what is left over.

    The new one is whole when it has a name without a dot, so it is the better one of the two.
    """
    for left in (_beside(folder, "new"), _beside(folder, "old")):
        if left.is_dir() and not folder.exists():
            left.rename(folder)
        shutil.rmtree(left, ignore_errors=True)


def standing(folder: Path) -> Path:
    """Where the checkpoint of that name is, even after a save that was stopped between two renames."""
    return next((found for found in (folder, _beside(folder, "new"), _beside(folder, "old")) if found.is_dir()), folder)


def _beside(folder: Path, suffix: str) -> Path:
    return folder.parent / f"{folder.name}.{suffix}"


def _score(run: Mapping[str, Any]) -> float:
    score = run.get("score")
    return -math.inf if score is None or math.isnan(score) else float(score)


def broadcast(
    communicator: Communicator, state: tuple[dict[str, Tensor], dict[str, Any]], root: int = 0
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Worker ``root``'s tensors and JSON, on every worker. A collective."""
    tensors, run = state
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    packed = communicator.broadcast_bytes(safetensors.torch.save(contiguous), root)
    run = json.loads(communicator.broadcast_bytes(json.dumps(run).encode(), root))
    return {name: tensor.clone() for name, tensor in safetensors.torch.load(packed).items()}, run


class Checkpoints:
    """The checkpoints of a run, in one folder that no other run may use meanwhile.

    :param folder: the run's folder; made if it is not there.
    :param keep: how many of the last ones are kept, beside the best one.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep
        self._scores: dict[int, float] = {}

    def expect(self) -> None:
        """An error, before anything is written, if there is nothing to resume."""
        if not any(self.folder.glob("step-*")):
            raise self._nothing()

    def _nothing(self) -> CheckpointError:
        what = "" if self.folder.is_dir() else ", which does not exist"
        return CheckpointError(f"There must be a checkpoint to resume from. Got none in {self.folder}{what}.")

    @contextmanager
    def lock(self, job: str = "", patience: float = 0.0) -> Iterator[bool]:
        """Hold the folder for one run.

        :param job: what tells this run from others, if another process may take the folder over from this one.
        :param patience: seconds to wait for another process of the same run, which was cut off and has yet to notice.
        :return: whether this one has taken it over.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise CheckpointError(
                f"The output folder must be writable. Got {self.folder}: {error.strerror}."
            ) from error
        try:
            until, held = time.monotonic() + patience, False
            while not held:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    held = True
                except OSError as error:
                    if time.monotonic() >= until or os.pread(descriptor, 1000, 0) != job.encode():
                        raise CheckpointError(
                            f"A folder is for one run at a time. Got {self.folder}, which another run uses."
                        ) from error
                    time.sleep(0.1)
            # What a run that was killed did not finish.
            for name in (_STEP, MODEL):
                for left in (*self.folder.glob(f"{name}.new"), *self.folder.glob(f"{name}.old")):
                    recover(left.with_suffix(""))
                for left in self.folder.glob(f".{name}.new.*"):
                    shutil.rmtree(left, ignore_errors=True)
            before = os.pread(descriptor, 1000, 0).decode(errors="replace")
            if before != job:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, job.encode(), 0)
            yield bool(job) and before == job
        finally:
            os.close(descriptor)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, the first first."""
        return sorted(int(path.name.split("-")[1]) for path in self.folder.glob(_STEP) if path.is_dir())

    def save(self, step: int, tensors: Mapping[str, Tensor], run: Mapping[str, Any]) -> Path:
        """Write the checkpoint of a step, and remove those that are no longer kept.

        :param run: with the ``score`` of the state, if it has one.
        """
        path = self._path(step)
        save(path, tensors, run)
        self._scores[step] = _score(run)
        best = self.best()
        for old in self.steps()[: -self.keep]:
            if old != best:
                shutil.rmtree(self._path(old), ignore_errors=True)
        return path

    def best(self) -> int | None:
        """The step with the highest score of those that have a checkpoint, the last one of equals."""
        return max(self.steps(), key=lambda step: (self._score(step), step), default=None)

    def _score(self, step: int) -> float:
        if step not in self._scores:
            try:
                self._scores[step] = _score(load(self._path(step))[1])
            except GPTFError:  # nothing to keep
                self._scores[step] = -math.inf
        return self._scores[step]

    def load_last(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The last checkpoint that is whole; one that is not is moved aside, with a warning, if there is an older one."""
        steps = self.steps()
        if not steps:
            raise self._nothing()
        for step in reversed(steps):
            try:
                return load(self._path(step))
            except GPTFError as error:
                if step == steps[0]:
                    raise
                path = self._path(step)
                path.rename(_beside(path, "damaged"))
                warnings.warn(f"{error} It is {path.name}.damaged now; the one before it is taken.", stacklevel=2)
        raise AssertionError

    def share_last(self, communicator: Communicator) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What :meth:`load_last` finds on worker 0, on every worker; the others need not see the folder. A collective."""
        found = together(communicator, lambda: self.load_last() if communicator.rank == 0 else None)
        if communicator.size == 1 and found is not None:
            return found
        return broadcast(communicator, ({}, {}) if found is None else found)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"
