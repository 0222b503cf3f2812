"""What a chain remembers from one sweep to the next."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """The columns of a row: a bias, ``pairs`` factors for products of two modes, ``products`` for those of all modes."""

    pairs: int
    products: int

    @property
    def columns(self) -> int:
        """D, how many there are."""
        return 1 + self.pairs + self.products


@dataclass
class State:
    """All that is sampled.

    :param coefficients: `[1 + T]` the mean c and the coefficients of the covariates.
    :param rows: `[A, D]` of the entities that occur, stacked over the modes.
    :param means: `[K, D]` of the rows of a mode.
    :param precisions: `[K, D, D]` of the rows of a mode.
    :param noise_precision: beta; 1 for labels.
    :param process: `[p]` whitened values of g at its inducing points; empty where g takes no part.
    """

    coefficients: Tensor
    rows: Tensor
    means: Tensor
    precisions: Tensor
    noise_precision: Tensor
    process: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Its parts by name."""
        return dict(vars(self))

    def copy(self) -> "State":
        """This moment, whatever happens later."""
        return State(**{name: tensor.clone() for name, tensor in vars(self).items()})

    def finite(self) -> bool:
        """Whether all of it are numbers."""
        return all(bool(torch.isfinite(tensor).all()) for tensor in vars(self).values())
