"""What a chain has kept, and what it says of entries."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gptf_gpytorch.multilinear import reference
from gptf_gpytorch.multilinear.covariates import Counts
from gptf_gpytorch.multilinear.layout import Entities
from gptf_gpytorch.multilinear.sampler import multilinear
from gptf_gpytorch.multilinear.state import Ranks, State

_PARTS = ("coefficients", "rows", "means", "precisions", "noise_precision", "process")


class Draw(NamedTuple):
    """What one sample says of n entries."""

    f: Tensor  # [n]
    spread: Tensor  # [n] variance that entities without entries add: what their prior leaves open
    noise: Tensor  # [] variance of an observation; 1 for labels


@dataclass(frozen=True)
class Samples:
    """S samples of a chain, in single precision.

    :param ranks: the columns of a row.
    :param entities: whose rows there are.
    :param counts: how often entities occur; None if that is no part of the model.
    :param tensors: the parts of :class:`~gptf_gpytorch.multilinear.state.State`, stacked `[S, ...]`.
    """

    ranks: Ranks
    entities: Entities
    counts: Counts | None
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, ranks: Ranks, entities: Entities, counts: Counts | None, states: list[State]) -> "Samples":
        """Those of some sweeps."""
        stacked = {name: torch.stack([getattr(state, name).float() for state in states]) for name in _PARTS}
        return cls(ranks, entities, counts, stacked)

    def __len__(self) -> int:
        return len(self.tensors["rows"])

    def covariates(self, rows: Tensor) -> Tensor:
        """`[n, T]` of entries that are not those of training, with stacked rows `[n, K]`."""
        linear = self.tensors["coefficients"].size(1) > 1
        return self.counts.new(rows) if linear and self.counts else torch.zeros(len(rows), 0, dtype=torch.float64)

    def draws(self, rows: Tensor, features: Tensor | None = None) -> Iterator[Draw]:
        """What each sample says of entries.

        :param rows: `[n, K]` stacked rows; -1 for an entity without entries, which takes its mode's prior.
        :param features: `[n, p]` of g, if it takes part.
        """
        K, A = rows.size(1), self.tensors["rows"].size(1)
        unseen = rows < 0
        # The prior mean of each mode stands behind the rows of its entities.
        places = torch.where(unseen, A + torch.arange(K, dtype=rows.dtype), rows).contiguous()
        design = torch.cat([torch.ones(len(rows), 1, dtype=torch.float64), self.covariates(rows)], dim=1)
        new = unseen.any(dim=1).nonzero()[:, 0]
        for place in range(len(self)):
            part = {name: tensor[place] for name, tensor in self.tensors.items()}
            table = torch.cat([part["rows"], part["means"]])
            f = design @ part["coefficients"].double() + multilinear(places, table, self.ranks.pairs)
            if features is not None:
                f += features @ part["process"].double()
            spread = torch.zeros_like(f)
            if len(new):
                spread[new] = self._prior_variance(places[new], unseen[new], table, part["precisions"])
            yield Draw(f, spread, 1.0 / part["noise_precision"].double())

    def _prior_variance(self, places: Tensor, unseen: Tensor, table: Tensor, precisions: Tensor) -> Tensor:
        """The variance h' T^-1 h, summed over the modes whose entity is unseen."""
        total = torch.zeros(len(places), dtype=torch.float64)
        for mode in range(places.size(1)):
            open_ = unseen[:, mode]
            if bool(open_.any()):
                h = reference.slopes(places[open_], table.double(), mode, self.ranks.pairs)
                L = torch.linalg.cholesky(precisions[mode].double())
                total[open_] += torch.linalg.solve_triangular(L, h.T, upper=False).square().sum(0)
        return total
