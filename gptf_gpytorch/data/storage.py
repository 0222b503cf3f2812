"""Folders that are there whole or not at all: written under a temporary name, flushed to the disk, renamed."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gptf_gpytorch.errors import DataError


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to write into. It gets its name when the block ends well; after an error nothing is left of it."""
    target = target.absolute()
    if target.exists():
        raise DataError(f"The folder to save to must not exist yet. Got {target}.")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        draft.chmod(0o777 & ~_umask())  # mkdtemp's is for the owner alone
        yield draft
        for path in sorted(draft.iterdir()):
            flush(path)
        flush(draft)
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    flush(target.parent)


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, name: str, content: dict[str, Any]) -> None:
    """A JSON file with the content, and the SHA-256 of every other file of the folder."""
    sums = {path.name: digest(path) for path in sorted(folder.iterdir())}
    (folder / name).write_text(json.dumps({**content, "sha256": sums}, indent=1) + "\n", encoding="utf-8")


def read_manifest(folder: Path, name: str, *, kind: str, version: int, verify: bool) -> dict[str, Any]:
    """The content of a manifest of the right kind, after the files it lists were found, and unchanged if asked for."""
    path = folder / name
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found, number, sums = content["format"], content["version"], dict(content["sha256"])
    except FileNotFoundError:
        raise DataError(f"A folder of saved entries must hold {name}. Got {folder} without it.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} must be a manifest that was saved whole. Got: {error!r}.") from error
    if (found, number) != (kind, version):
        raise DataError(f"{path} must be of format {kind!r}, version {version}. Got {found!r}, version {number!r}.")
    for file, expected in sums.items():
        if not (folder / file).is_file():
            raise DataError(f"{folder} must hold every file that {name} lists. Got no {file}.")
        if verify and digest(folder / file) != expected:
            raise DataError(f"{folder / file} must be what was saved. Got another SHA-256: the file has changed.")
    return dict(content)


def load_array(path: Path, *, mmap: bool) -> np.ndarray[Any, Any]:
    """An array from a `.npy` file: mapped, with writes (if any) private to the process, or read whole."""
    try:
        # "c" rather than "r": torch warns about memory that it could not write to.
        found: np.ndarray[Any, Any] = np.load(path, mmap_mode="c" if mmap else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} must be a .npy file that was saved whole. Got: {error}.") from error
    return found


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value
