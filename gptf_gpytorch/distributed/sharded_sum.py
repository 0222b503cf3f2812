"""The differentiable sum over chunks of entries and over workers: one collective forward, one backward."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gptf_gpytorch.distributed import slots
from gptf_gpytorch.distributed.communicator import Communicator
from gptf_gpytorch.distributed.threads import split

# Chunks after which a thread looks whether its worker was asked to stop: about a second's work.
_LEG = 50


class Shard(Protocol):
    """The entries that this worker holds; there may be none."""

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """The tensors that the entries' inputs x are gathered from, as far as they may need a gradient."""

    def chunks(self) -> Sequence[Any]:
        """The same chunks in the same order at every call; ``rows`` of each is a slice of the shard's entries."""


class Summation(Protocol):
    """Chunks to a tuple of tensors to be summed."""

    @property
    def threaded(self) -> bool:
        """Whether several chunks should be mapped at a time, each on one thread."""

    def total(self, chunks: Sequence[Any], /) -> tuple[Tensor, ...]:
        """The sums over consecutive chunks, of which there may be none, without a graph."""


class ChunkMap(Summation, Protocol):
    """The map: a summation, and the way back."""

    @property
    def leaves(self) -> Sequence[Tensor]:
        """The tensors beside x that the map depends on and that may need a gradient."""

    def pull(
        self,
        chunks: Sequence[Any],
        cotangents: Sequence[Tensor],
        wanted: Sequence[bool],
        tables: Sequence[Tensor | None],
        /,
    ) -> Sequence[Tensor | None]:
        """The gradient of sum(total * cotangent) with respect to the wanted leaves; None is zero.

        That with respect to the tables is added to ``tables``; one that is None needs none.
        """


def total(map_chunks: Summation, shard: Shard, communicator: Communicator) -> tuple[Tensor, ...]:
    """The sum of ``map_chunks`` over all chunks of all workers, without a gradient: one collective.

    Every worker's slot travels with it: numbers that are not finite, and a wish to stop, are errors on all workers.
    """
    with torch.no_grad():
        chunks = shard.chunks()

        def add(part: Sequence[Any]) -> tuple[Tensor, ...]:
            return _add_up(map_chunks.total(leg) for leg in _legs(part, communicator))

        mine = _add_up(split(add, chunks, map_chunks.threaded))
        bad = (
            None if _finite(mine) else next((c.rows for c in chunks if not _finite(map_chunks.total([c]))), slice(0, 0))
        )
        *sums, said = _reduce([*mine, slots.fill(communicator, mine[0], bad)], communicator)
    slots.check(said)
    return tuple(sums)


def _finite(tensors: Sequence[Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def sharded_sum(map_chunks: ChunkMap, shard: Shard, communicator: Communicator) -> tuple[Tensor, ...]:
    r"""The sum of ``map_chunks`` over all chunks of all workers, with a gradient.

    Plain autograd would keep every chunk's intermediates until the backward pass, O(N p) numbers. This function keeps
    none: the backward pass maps each chunk again and pulls the gradient of the sums back through it, so memory is
    O(chunk p) whatever N is. The gradient with respect to the tables stops at x in each chunk and is scattered into one
    accumulator, so that a chunk costs nothing for the rows it does not touch.

    There are exactly two collectives: one sums the outputs in the forward pass, one sums the gradient of the leaves and
    tables, as one dense vector, in the backward pass; each worker's slot travels with both. Afterwards all workers hold
    the same bits, which is why nothing that follows needs to communicate.
    """
    sums: tuple[Tensor, ...] = _ShardedSum.apply(  # type: ignore[no-untyped-call]
        map_chunks, shard, communicator, *map_chunks.leaves, *shard.tables
    )
    return sums


class _ShardedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, map_chunks: ChunkMap, shard: Shard, communicator: Communicator, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.job = map_chunks, shard, communicator
        # Saved so that an optimiser step between forward and backward is an error, not a wrong gradient.
        ctx.save_for_backward(*tensors)
        return total(map_chunks, shard, communicator)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        map_chunks, shard, communicator = ctx.job
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]
        first_table = len(map_chunks.leaves)

        def add(chunks: Sequence[Any]) -> tuple[Tensor, ...]:
            zeros = [torch.zeros_like(t) if need else None for t, need in zip(tensors, needed, strict=True)]
            leaves, tables = zeros[:first_table], zeros[first_table:]
            for leg in _legs(chunks, communicator):
                found = map_chunks.pull(leg, cotangents, needed[:first_table], tables)
                for accumulated, share in zip(leaves, found, strict=True):
                    if accumulated is not None and share is not None:
                        accumulated.add_(share)
            return tuple(gradient for gradient in zeros if gradient is not None)

        if not any(needed):
            return (None,) * (3 + len(needed))
        mine = _add_up(split(add, shard.chunks(), map_chunks.threaded))
        *sums, said = _reduce([*mine, slots.fill(communicator, mine[0], None)], communicator)
        slots.check(said)
        reduced = iter(sums)
        return None, None, None, *(next(reduced) if need else None for need in needed)


def _legs(chunks: Sequence[Any], communicator: Communicator) -> Iterator[Sequence[Any]]:
    """The chunks, some at a time; the rest is left when the worker is asked to stop, which its slot will say to all."""
    yield chunks[:_LEG]
    for start in range(_LEG, len(chunks), _LEG):
        if communicator.wish:
            return
        yield chunks[start : start + _LEG]


def _add_up(parts: Iterator[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The sum of accumulators, in their order."""
    first = next(parts)
    for part in parts:
        for accumulated, share in zip(first, part, strict=True):
            accumulated.add_(share)
    return first


def _reduce(tensors: Sequence[Tensor], communicator: Communicator) -> tuple[Tensor, ...]:
    """Sum tensors over workers as one flat vector for each dtype."""
    if communicator.size == 1:  # nothing to add: do not copy the gradient of all entities
        return tuple(tensors)
    reduced: list[Tensor] = list(tensors)
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        places = [place for place, t in enumerate(tensors) if t.dtype == dtype]
        flat = communicator.sum(torch.cat([tensors[place].reshape(-1) for place in places]))
        parts = flat.split([tensors[place].numel() for place in places])
        for place, part in zip(places, parts, strict=True):
            reduced[place] = part.view(tensors[place].shape)
    return tuple(reduced)
