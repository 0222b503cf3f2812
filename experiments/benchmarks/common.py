"""What the benchmarks share: the problem, interleaved timing, the floor of the hardware, and results with their machine."""

import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import gpytorch
import torch
from torch import Tensor

from gptf_gpytorch import GPTF, CollapsedELBO, ProbitLikelihood, initialize

RESULTS = Path(__file__).parents[1] / "results"
SHAPE, RANK = (1000, 500, 800), 3


def entries(n: int, *, binary: bool = False, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> tuple[Tensor, Tensor]:
    """Seeded entries whose values are a nonlinear function of hidden factors."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.stack([torch.randint(d, (n,), generator=generator) for d in shape], dim=-1)
    hidden = [torch.randn(d, generator=generator, dtype=torch.float64) for d in shape]
    a, b, c = (table[indices[:, mode]] for mode, table in enumerate(hidden))
    f = torch.sin(2.0 * a) * b + c
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return indices, (f + noise > 0).double() if binary else f + 0.5 * noise


def problem(
    indices: Tensor,
    y: Tensor,
    p: int,
    *,
    binary: bool = False,
    rank: int = RANK,
    shape: tuple[int, ...] = SHAPE,
    **options: Any,
) -> CollapsedELBO:
    """A model at the default start, and its bound."""
    torch.manual_seed(0)
    model = GPTF(shape=shape, rank=rank, num_inducing=p)
    likelihood = ProbitLikelihood() if binary else gpytorch.likelihoods.GaussianLikelihood()
    mll = CollapsedELBO(likelihood, model, **{"num_data": len(y), **options})
    initialize(mll, indices, y)
    return mll


def evaluation(mll: CollapsedELBO, indices: Tensor, y: Tensor) -> Callable[[], None]:
    """One full evaluation of the bound and its gradient."""

    def run() -> None:
        mll.zero_grad()
        (-mll(mll.model.train()(indices), y)).backward()

    return run


def gemm() -> Callable[[], None]:
    """A large matrix product, for the peak."""
    size = 1500
    a, out = torch.randn(size, size, dtype=torch.float64), torch.empty(size, size, dtype=torch.float64)

    def run() -> None:
        torch.mm(a, a, out=out)

    return run


def floor(n: int, p: int, gemm_seconds: float) -> float:
    """The absolute floor of one Gaussian evaluation: 4 p^2 N + 8 p D N flops at the measured peak."""
    return (4.0 * p * p * n + 8.0 * p * len(SHAPE) * RANK * n) / peak(gemm_seconds)


def peak(gemm_seconds: float) -> float:
    """Floating point operations a second, from the seconds of :func:`gemm`."""
    return 2.0 * 1500**3 / gemm_seconds


def interleave(
    subjects: dict[str, Callable[[], object]],
    rounds: int,
    *,
    quick: Collection[str] = (),
    times: int = 1,
) -> dict[str, list[float]]:
    """Seconds of each subject, one after the other in every round, after one round that does not count.

    Each is run twice and timed the second time, as in training, where an evaluation follows another: cores that were
    idle begin slowly, and the threads of some libraries spin, and their memory is freed, for a while after they have
    returned, which would be charged to whoever comes next.

    :param quick: subjects that take so little time that in every round each has several turns.
    :param times: as many.
    """
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(rounds + 1):
        order = [*subjects, *(name for _ in range(times - 1) for name in subjects if name in quick)]
        for name in order:
            subjects[name]()
            started = time.perf_counter()
            subjects[name]()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def medians(seconds: dict[str, list[float]]) -> dict[str, float]:
    """The median of each subject."""
    return {name: statistics.median(values) for name, values in seconds.items()}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "",
    )
    installed = {found.name: found.version for found in importlib.metadata.distributions()}
    names = (
        "gptf_gpytorch",
        "torch",
        "gpytorch",
        "numpy",
        "scipy",
        "scikit-learn",
        "tensorly",
        "pyttb",
        "myfm",
        "horovod",
        "gpflow",
        "tensorflow",
        "jax",
    )
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: installed[name] for name in names if name in installed},
    }


def write(name: str, result: dict[str, Any]) -> None:
    """Keep a result under experiments/results."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")
    print(f"wrote {path}")
