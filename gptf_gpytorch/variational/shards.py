"""The entries that a worker holds, and the chunks in which they are mapped."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gptf_gpytorch.factors import LatentFactors

Offset = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class EntryShard:
    """The entries that one worker holds: indices or plain inputs, values, and weights if there are any.

    They may live elsewhere, and in another precision, than the model, whose ``device`` and ``dtype`` they are mapped
    in; a memory-mapped file will do. With draws, an entry counts once for each draw of its factors, one after the other, with
    its weight divided by their number; ``draws_biases`` says whether its biases are drawn with them. ``total`` is how many
    entries all workers must have.
    """

    inputs: Tensor
    y: Tensor
    v: Tensor | None
    factors: LatentFactors | None
    chunk_size: int
    device: torch.device
    dtype: torch.dtype
    draws: range = range(0)
    turn: int = 0
    draws_biases: bool = False
    total: int = 0

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """What x is gathered from, as far as it may need a gradient."""
        if self.factors is not None:
            return self.factors.tables
        return (self.inputs,) if self.inputs.requires_grad else ()

    @property
    def copies(self) -> int:
        """How often an entry counts."""
        return max(1, len(self.draws))

    def __len__(self) -> int:
        return self.inputs.size(-2) * self.copies

    def chunks(self) -> "list[EntryChunk]":
        """At most ``chunk_size`` entries at a time, with all their draws."""
        size = max(1, self.chunk_size // self.copies) * self.copies
        return [EntryChunk(self, slice(start, min(start + size, len(self)))) for start in range(0, len(self), size)]


@dataclass(frozen=True)
class EntryChunk:
    """Consecutive entries of a shard, moved to where the model is when they are read."""

    shard: EntryShard
    rows: slice

    @cached_property
    def indices(self) -> Tensor:
        """The entries' indices `[n, K]`, or x `[..., n, D]` where there are no factors."""
        found = self.shard.inputs[..., self._entries, :].to(self.shard.device)
        return found.repeat_interleave(self.shard.copies, -2) if self.shard.copies > 1 else found

    @cached_property
    def noise(self) -> Tensor | None:
        """What the factors are drawn with `[n, D]`, None for point estimates."""
        shard = self.shard
        if shard.factors is None or not shard.draws:
            return None
        return shard.factors.noise(shard.inputs[self._entries].to(shard.device), shard.draws, shard.turn)

    @cached_property
    def offset(self) -> Offset | None:
        """Mean and variance `[n]` of what biases add to f, without a graph; None where there are no biases."""
        factors = self.shard.factors
        if factors is None or not factors.biases:
            return None
        with torch.no_grad():
            mean, variance = self._biases
            if not self.shard.draws_biases:
                return mean, variance
            return mean + self._bias_noise * variance.sqrt(), torch.zeros_like(variance)

    @property
    def y(self) -> Tensor:
        """The entries' values `[..., n]`."""
        return self._one_an_entry(self.shard.y)

    @property
    def weights(self) -> Tensor | None:
        """The entries' weights `[..., n]`, None if all are 1."""
        found = None if self.shard.v is None else self._one_an_entry(self.shard.v)
        if self.shard.copies == 1:
            return found
        return (torch.ones_like(self.y) if found is None else found) / self.shard.copies

    @property
    def v(self) -> Tensor:
        """The entries' weights `[..., n]`."""
        weights = self.weights
        return torch.ones_like(self.y) if weights is None else weights

    def gather(self) -> Tensor:
        """X `[..., n, D]`, without a graph."""
        with torch.no_grad():
            factors = self.shard.factors
            if factors is None:
                return self.indices.detach().to(self.shard.dtype)
            return factors(self.indices) if self.noise is None else factors.draw(self.indices, self.noise)

    def scatter_(self, gradients: Sequence[Tensor | None], dx: Tensor) -> None:
        """Add the gradient of x where x came from: rows of the factors, or rows of the plain inputs."""
        if self.shard.factors is not None:
            self.shard.factors.scatter_(gradients, self.indices, dx, self.noise)
        elif gradients[0] is not None:
            gradients[0][..., self.rows, :].add_(dx.to(gradients[0]))

    def scatter_offset_(self, gradients: Sequence[Tensor | None], d_mean: Tensor, d_variance: Tensor) -> None:
        """Add the gradient of the offset to that of the biases."""
        assert self.shard.factors is not None  # noqa: S101 they have the biases
        if self.shard.draws_biases:
            d_variance = 0.5 * d_mean * self._bias_noise / self._biases[1].sqrt()
        self.shard.factors.scatter_offset_(gradients, self.indices, d_mean, d_variance)

    @cached_property
    def _biases(self) -> Offset:
        """Mean and variance `[n]` of the sums of biases."""
        assert self.shard.factors is not None  # noqa: S101 they have the biases
        with torch.no_grad():
            return self.shard.factors.offset(self.indices)

    @cached_property
    def _bias_noise(self) -> Tensor:
        """What the sum of an entry's biases is drawn with `[n]`."""
        shard = self.shard
        assert shard.factors is not None  # noqa: S101 they have the biases
        return shard.factors.bias_noise(shard.inputs[self._entries].to(shard.device), shard.draws, shard.turn)

    @property
    def _entries(self) -> slice:
        return slice(self.rows.start // self.shard.copies, self.rows.stop // self.shard.copies)

    def _one_an_entry(self, values: Tensor) -> Tensor:
        found = values[..., self._entries].to(device=self.shard.device, dtype=self.shard.dtype)
        return found.repeat_interleave(self.shard.copies, -1) if self.shard.copies > 1 else found


def one_by_one(chunks: Sequence[EntryChunk]) -> Iterator[EntryChunk]:
    """The chunks, each without what it may have read, so that nothing of it stays when the next one comes."""
    return (replace(chunk) for chunk in chunks)
