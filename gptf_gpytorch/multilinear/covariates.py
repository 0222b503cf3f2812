"""What is known of an entry beside its entities: how often each of them occurs among the training entries."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gptf_gpytorch.multilinear.layout import Entities


@dataclass(frozen=True)
class Counts:
    """Standardised log counts of the entities of an entry.

    :param logs: `[A]` of each entity that occurs, ln(1 + count).
    :param logs_without: `[A]` the same without one entry, for the training entries themselves.
    :param centre: `[K]` over the training entries.
    :param spread: `[K]`.
    """

    logs: Tensor
    logs_without: Tensor
    centre: Tensor
    spread: Tensor

    @classmethod
    def of(cls, entities: Entities, rows: Tensor) -> "Counts":
        """Those of all training entries, with stacked rows `[N, K]`."""
        counts = torch.bincount(rows.flatten().long(), minlength=entities.offsets[-1]).double()
        logs, without = counts.log1p(), counts.clamp(min=1.0).log()
        x = without[rows.long()]
        spread = x.std(0, correction=0)
        return cls(logs, without, x.mean(0), torch.where(spread > 1e-9, spread, 1.0))

    def training(self, rows: Tensor) -> Tensor:
        """`[n, K]` of training entries, each not counted itself."""
        return (self.logs_without[rows.long()] - self.centre) / self.spread

    def new(self, rows: Tensor) -> Tensor:
        """`[n, K]` of other entries; an entity that does not occur (-1) has a count of 0."""
        known = torch.where(rows >= 0, self.logs[rows.long().clamp(min=0)], 0.0)
        return (known - self.centre) / self.spread
