"""What is installed and whether it works, in a form that every layer can report and a person can read.

Each layer has a ``describe()`` that returns facts about what it stands on; ``gptf doctor`` prints them.
"""

import importlib
import importlib.metadata
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from packaging.requirements import Requirement

from gptf_gpytorch.version import __version__


@dataclass(frozen=True)
class Fact:
    """One line of ``gptf doctor``.

    :param topic: what the line is about.
    :param value: what was found, in words.
    :param state: ``ok``; ``missing``, an optional thing that is not there; or ``broken``, a thing that
        is there and does not work.
    :param remedy: the command that provides what is missing or mends what is broken.
    """

    topic: str
    value: str
    state: Literal["ok", "missing", "broken"] = "ok"
    remedy: str | None = None


def pip_install(extra: str) -> str:
    """The command that installs an extra's requirements into the running interpreter's environment."""
    declared = importlib.metadata.requires("gptf_gpytorch") or []
    wanted = [
        f"{requirement.name}{requirement.specifier}"
        for requirement in map(Requirement, declared)
        if requirement.marker is not None and requirement.marker.evaluate({"extra": extra})
    ]
    return shlex.join([sys.executable, "-m", "pip", "install", *wanted])


def describe() -> Iterator[Fact]:
    """The interpreter, the numerical packages, the threads and the BLAS that the map will run on."""
    torch = importlib.import_module("torch")  # not above: what sends runs beside training does without it
    yield Fact("gptf_gpytorch", __version__)
    yield Fact("python", f"{platform.python_version()} ({sys.executable})")
    for name in ("torch", "gpytorch", "linear_operator", "numpy", "scikit-learn"):
        yield Fact(name, importlib.metadata.version(name))
    yield Fact(
        "threads",
        f"{torch.get_num_threads()} torch threads, {len(os.sched_getaffinity(0))} usable cores, "
        f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}",
    )
    yield _blas(torch)


def _blas(torch: Any) -> Fact:
    """Which BLAS torch was built with, proven by a factorisation that needs it."""
    config = torch.__config__.show()
    found = re.search(r"BLAS_INFO=(\w+)", config)
    name = found.group(1) if found else "unknown"
    version = re.search(r"(oneAPI Math Kernel Library Version \S+|OpenBLAS \S+)", config)
    matrix = torch.tensor([[4.0, 2.0], [2.0, 3.0]], dtype=torch.float64)
    factor = torch.linalg.cholesky(matrix)
    if not torch.allclose(factor @ factor.T, matrix, rtol=0.0, atol=1e-14):
        return Fact("BLAS", f"{name}: a 2 x 2 Cholesky factor is wrong", "broken", pip_install("all"))
    return Fact("BLAS", f"{name}{f' ({version.group(1)})' if version else ''}")
