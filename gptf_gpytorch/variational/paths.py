"""Which map runs: the fused one where the prior is known to it, the generic one everywhere else."""

from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from gptf_gpytorch.distributed.sharded_sum import ChunkMap
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.variational.fused import FusedCurvatureMap, FusedGaussianMap, FusedProbitMap
from gptf_gpytorch.variational.stationary import recognise
from gptf_gpytorch.variational.statistics import CurvatureMap, EntryShard, GaussianMap, ProbitMap
from gptf_gpytorch.variational.workspace import Arena, Workspace

Path = Literal["auto", "generic", "whitened", "explicit"]
PATHS = ("auto", "generic", "whitened", "explicit")


class Maps(Protocol):
    """The maps of one evaluation, which share what they can."""

    path: str

    def gaussian(self) -> ChunkMap:
        """To :class:`GaussianStatistics`."""

    def probit(self, eta: Tensor) -> ChunkMap:
        """To :class:`ProbitStatistics`."""

    def curvature(self, eta: Tensor) -> ChunkMap:
        """To :class:`CurvatureStatistics`."""


class _Generic:
    path = "generic"

    def __init__(self, *where: Any) -> None:
        self.where = where

    def gaussian(self) -> ChunkMap:
        return GaussianMap(*self.where)

    def probit(self, eta: Tensor) -> ChunkMap:
        return ProbitMap(*self.where, eta=eta)

    def curvature(self, eta: Tensor) -> ChunkMap:
        return CurvatureMap(*self.where, eta=eta)


class _Fused:
    def __init__(self, space: Workspace) -> None:
        self.space, self.path = space, space.path

    def gaussian(self) -> ChunkMap:
        return FusedGaussianMap(self.space)

    def probit(self, eta: Tensor) -> ChunkMap:
        return FusedProbitMap(self.space, eta)

    def curvature(self, eta: Tensor) -> ChunkMap:
        return FusedCurvatureMap(self.space, eta)


def choose(
    path: Path,
    model: Any,
    inducing_points: Tensor,
    L: Tensor,
    batch_shape: torch.Size,
    shard: EntryShard,
    arena: Arena,
    *,
    binary: bool,
) -> Maps:
    """The maps of one evaluation.

    :param path: ``auto``: fused if the prior allows it, with an explicit S if the conditioning does. The others force a
        path, for comparisons: ``generic``, ``whitened`` or ``explicit``.
    :param binary: whether lambda has to be found first, in several passes.
    :param arena: memory that the fused maps use again from one evaluation to the next.
    """
    plain = not batch_shape and shard.inputs.dim() == 2 and shard.y.dim() == 1
    prior = recognise(model, inducing_points) if plain and path != "generic" else None
    if prior is not None:
        explicit = {"whitened": False, "explicit": True}.get(path)
        return _Fused(Workspace(prior, L, arena, explicit=explicit, many_passes=binary))
    if path in ("whitened", "explicit"):
        raise InputError(
            f"path='{path}' needs a KernelPrior model with an RBF or Matern kernel, a zero or constant mean and no batch. "
            f"Got {type(model.covar_module).__name__} in a {type(model).__name__}."
        )
    tables = {id(table) for table in shard.tables}
    leaves = [p for p in model.parameters() if p.requires_grad and id(p) not in tables]
    return _Generic(model, inducing_points, L, batch_shape, leaves)
