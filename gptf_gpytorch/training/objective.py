"""Minus the bound as a function of one flat vector of parameters, and the likelihood of entries held out."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.distributed.communicator import Communicator
from gptf_gpytorch.distributed.threads import one_core_each
from gptf_gpytorch.errors import NumericalError
from gptf_gpytorch.factors import hashed
from gptf_gpytorch.likelihoods import log_predictive
from gptf_gpytorch.training.optimizers import Point
from gptf_gpytorch.variational.elbo import CollapsedELBO
from gptf_gpytorch.variational.prediction import marginals


@dataclass(frozen=True)
class Scaling:
    """Values in training are (value - centre) / spread."""

    centre: float = 0.0
    spread: float = 1.0

    @classmethod
    def fitted(cls, values: Tensor, communicator: Communicator) -> "Scaling":
        """The mean and standard deviation of the values of all workers."""
        values = values.double()
        total, count = communicator.sum(torch.stack([values.sum(), values.new_tensor(float(len(values)))])).tolist()
        centre = total / max(count, 1.0)
        square = float(communicator.sum((values - centre).square().sum().reshape(1)))
        spread = math.sqrt(square / max(count, 1.0))
        return cls(centre, spread if spread > 0 else 1.0)

    def scaled(self, values: Tensor) -> Tensor:
        """Values as the model sees them."""
        return (values.double() - self.centre) / self.spread


class BoundObjective:
    """Minus the bound of an entry and its gradient, at any flat vector of the parameters.

    :param mll: the bound; its model is put into training mode.
    :param entries: this worker's training entries, their values as the model sees them.
    :param batch: entries, about, of each of the parts that an evaluation may take for all; 0 makes no parts. A part is of random
        cells, whoever has them. With several workers making parts is a collective.
    """

    def __init__(
        self, mll: CollapsedELBO, indices: Tensor, values: Tensor, weights: Tensor | None, batch: int = 0
    ) -> None:
        self.mll, self.indices, self.values, self.weights = mll, indices, values, weights
        #: How many parts there are.
        self.parts = max(1, mll.num_data // batch) if batch else 1
        #: The part of the entries that the next evaluation takes, weighed to stand for all; None for all.
        self.part: int | None = None
        self._rows: tuple[Tensor, ...] = ()
        self._sizes: list[int] = []
        if self.parts > 1:
            part = (hashed(indices, turn=1) >> 30) % self.parts
            mine = torch.bincount(part, minlength=self.parts)
            sizes, rows = mll.communicator.sum(mine).tolist(), part.argsort(stable=True).split(mine.tolist())
            # The entries of a cell, which may be there more than once, are in one part: another one may have none.
            self._rows = tuple(found for found, size in zip(rows, sizes, strict=True) if size)
            self._sizes = [size for size in sizes if size]
            self.parts = len(self._sizes)
        self.parameters = [parameter for parameter in mll.parameters() if parameter.requires_grad]
        self.evaluations = self.failures = 0
        #: Which draws of factors the next evaluation takes, see :attr:`CollapsedELBO.turn`.
        self.turn = 0
        #: Where the bound was evaluated last.
        self.last = self.vector()

    @property
    def entries(self) -> int:
        """How many entries, of all workers, an evaluation takes."""
        return self.mll.num_data if self.part is None else self._sizes[self.part]

    def vector(self) -> Tensor:
        """The parameters, flat."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters]).clone()

    def assign(self, x: Tensor) -> None:
        """Set the parameters."""
        with torch.no_grad():
            for parameter, part in zip(self.parameters, x.split([p.numel() for p in self.parameters]), strict=True):
                parameter.copy_(part.view_as(parameter))

    def take(self, turn: int) -> None:
        """Make the next evaluation one of this turn: of its part of the entries, if there are parts, and its draws."""
        self.turn, self.part = turn, (turn - 1) % self.parts if self.parts > 1 else None

    def value(self, x: Tensor) -> float:
        """The objective at x, of all entries, without its gradient; q(v) belongs to x afterwards."""
        self.part = None
        return self._loss(x).item()

    def __call__(self, x: Tensor) -> Point:
        """The objective at x, and its gradient; q(v) belongs to x afterwards."""
        for parameter in self.parameters:
            parameter.grad = None
        try:
            loss = self._loss(x)
            loss.backward()
        except NumericalError:
            self.failures += 1
            raise
        gradient = torch.cat([_gradient(parameter) for parameter in self.parameters])
        # The sum is one pass over the parameters of all entities, and seldom infinite where they are not.
        if not math.isfinite(loss.item()) or not (math.isfinite(gradient.sum()) or bool(gradient.isfinite().all())):
            self.failures += 1
            raise NumericalError(
                f"The bound and its gradient must be finite. Got {loss.item()} and a gradient of norm {gradient.norm()}."
            )
        return Point(x, loss.item(), gradient)

    def _loss(self, x: Tensor) -> Tensor:
        self.assign(x)
        self.last = x
        self.evaluations += 1
        self.mll.turn = self.turn
        indices, values, weights = self._taken()
        try:
            loss: Tensor = -self.mll(self.mll.model.train()(indices), values, weights=weights)
        finally:
            self.mll.sample = None
        return loss

    def _taken(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The entries of an evaluation."""
        if self.part is None:
            return self.indices, self.values, self.weights
        rows, self.mll.sample = self._rows[self.part], self.entries
        weights = self.values.new_ones(len(rows)) if self.weights is None else self.weights[rows]
        return self.indices[rows], self.values[rows], weights * (self.mll.num_data / self.entries)


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter).reshape(-1) if parameter.grad is None else parameter.grad.detach().reshape(-1)


def mean_log_density(mll: CollapsedELBO, held_out: TensorEntries, scaling: Scaling) -> float:
    """The mean log predictive density of held-out entries of all workers, in the user's units. q(v) must be up to date."""
    # As an evaluation of the bound: an operation on all cores would leave OpenMP's threads spinning where the next
    # evaluation's threads want to be.
    with one_core_each(), torch.no_grad():
        q = marginals(mll.model, held_out.indices)
        log_p = log_predictive(mll.likelihood, q.mean, q.variance.clamp(min=0.0), scaling.scaled(held_out.values))
        log_p -= math.log(scaling.spread)
        sums = torch.stack([log_p.sum(), log_p.new_tensor(float(len(held_out)))])
        total, count = (float(number) for number in mll.communicator.sum(sums))
    return total / max(count, 1.0)
