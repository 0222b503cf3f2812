"""Which map runs: the fused one where the prior is known to it, the generic one everywhere else."""

from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from gptf_gpytorch.distributed.sharded_sum import ChunkMap, Summation
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.health import Fact
from gptf_gpytorch.variational.fused import FusedCurvatureMap, FusedGaussianMap, FusedProbitMap
from gptf_gpytorch.variational.shards import EntryShard
from gptf_gpytorch.variational.stationary import StationaryPrior, recognise
from gptf_gpytorch.variational.statistics import CurvatureMap, GaussianMap, ProbitMap
from gptf_gpytorch.variational.workspace import Scratch, Workspace

Path = Literal["auto", "generic", "whitened", "explicit"]
PATHS = ("auto", "generic", "whitened", "explicit")


class Maps(Protocol):
    """The maps of one evaluation, which share what they can."""

    path: str

    def gaussian(self) -> ChunkMap:
        """To :class:`GaussianStatistics`."""

    def probit(self, eta: Tensor) -> ChunkMap:
        """To :class:`ProbitStatistics`."""

    def curvature(self, eta: Tensor) -> Summation:
        """To :class:`CurvatureStatistics`."""


class _Generic:
    path = "generic"

    def __init__(self, *where: Any) -> None:
        self.where = where

    def gaussian(self) -> ChunkMap:
        return GaussianMap(*self.where)

    def probit(self, eta: Tensor) -> ChunkMap:
        return ProbitMap(*self.where, eta=eta)

    def curvature(self, eta: Tensor) -> Summation:
        return CurvatureMap(*self.where, eta=eta)


class _Fused:
    def __init__(self, space: Workspace, entries: int) -> None:
        self.space, self.path, self.entries = space, space.path, entries

    def gaussian(self) -> ChunkMap:
        return FusedGaussianMap(self.space)

    def probit(self, eta: Tensor) -> ChunkMap:
        return FusedProbitMap(self.space, eta, self.entries)

    def curvature(self, eta: Tensor) -> Summation:
        return FusedCurvatureMap(self.space, eta)


def describe() -> Iterator[Fact]:
    """Whether the fused map's loops are compiled."""
    found = _numba()
    if found:
        yield Fact("loops", f"compiled, Numba {found}")
    else:
        yield Fact("loops", "torch; slower than compiled ones", "missing", "pip install 'gptf_gpytorch[fast]'")


def workspace(
    prior: StationaryPrior, L: Tensor, scratch: Scratch, compiled: bool | None = None, **options: Any
) -> Workspace:
    """A workspace for a prior that the fused map knows.

    :param compiled: whether the loops are compiled: if None, wherever they can be.
    """
    can = L.device.type == "cpu" and L.dtype == torch.float64 and _numba() is not None
    if compiled and not can:
        raise InputError(
            "compiled=True needs Numba (the extra `fast`), a CPU and float64. "
            f"Got {'Numba' if _numba() else 'no Numba'}, {L.device} and {L.dtype}."
        )
    if not can or compiled is False:
        return Workspace(prior, L, scratch, **options)
    # Here, because Numba is optional and takes a while to import.
    from gptf_gpytorch.variational.compiled import CompiledWorkspace

    return CompiledWorkspace(prior, L, scratch, **options)


@cache  # looking it up takes longer than a small evaluation's products
def _numba() -> str | None:
    try:
        return version("numba")
    except PackageNotFoundError:
        return None


def choose(
    path: Path,
    model: Any,
    inducing_points: Tensor,
    L: Tensor,
    batch_shape: torch.Size,
    shard: EntryShard,
    scratch: Scratch,
    *,
    compiled: bool | None = None,
) -> Maps:
    """The maps of one evaluation.

    :param path: ``auto``: fused if the prior allows it, with an explicit S if the conditioning does. The others force a
        path, for comparisons: ``generic``, ``whitened`` or ``explicit``.
    :param scratch: memory that the fused maps use again from one evaluation to the next.
    :param compiled: see :func:`workspace`.
    """
    plain = not batch_shape and shard.inputs.dim() == 2 and shard.y.dim() == 1
    prior = recognise(model, inducing_points) if plain and path != "generic" else None
    if prior is not None:
        explicit = {"whitened": False, "explicit": True}.get(path)
        return _Fused(workspace(prior, L, scratch, compiled, explicit=explicit), len(shard))
    if path in ("whitened", "explicit"):
        raise InputError(
            f"path='{path}' needs a KernelPrior model with an RBF or Matern kernel, a zero or constant mean and no batch. "
            f"Got {type(model.covar_module).__name__} in a {type(model).__name__}."
        )
    tables = {id(table) for table in shard.tables}
    leaves = [p for p in model.parameters() if p.requires_grad and id(p) not in tables]
    return _Generic(model, inducing_points, L, batch_shape, leaves)
