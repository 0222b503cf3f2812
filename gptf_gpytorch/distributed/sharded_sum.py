"""The differentiable sum over chunks of entries and over workers: one collective forward, one backward."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gptf_gpytorch.distributed.communicator import Communicator


class Chunk(Protocol):
    """A few entries of a shard."""

    def gather(self) -> Tensor:
        """The inputs x of these entries `[..., n, D]`, read from the shard's tables, without a graph."""

    def scatter_(self, gradients: Sequence[Tensor | None], dx: Tensor) -> None:
        """Add the gradient of x to the gradients of the tables it was gathered from: the transpose of gather.

        A table whose gradient is None needs none.
        """


class Shard(Protocol):
    """The entries that this worker holds; there may be none."""

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """The tensors that gather reads: latent factors, or plain inputs that need a gradient."""

    def chunks(self) -> Iterator[Any]:
        """The same chunks in the same order at every call."""


class ChunkMap(Protocol):
    """The map: a chunk, its inputs and the arguments to a tuple of tensors to be summed."""

    def zeros(self) -> tuple[Tensor, ...]:
        """What a shard without entries contributes."""

    def __call__(self, chunk: Any, x: Tensor, /, *arguments: Any) -> tuple[Tensor, ...]:
        """This chunk's share of the sums."""


def total(
    map_chunk: ChunkMap, shard: Shard, arguments: Sequence[Tensor], communicator: Communicator
) -> tuple[Tensor, ...]:
    """The sum of ``map_chunk`` over all chunks of all workers, without a gradient: one collective."""
    with torch.no_grad():
        sums = map_chunk.zeros()
        for chunk in shard.chunks():
            for accumulated, share in zip(sums, map_chunk(chunk, chunk.gather(), *arguments), strict=True):
                accumulated.add_(share)
        return _reduce(sums, communicator)


def sharded_sum(
    map_chunk: ChunkMap,
    shard: Shard,
    arguments: Sequence[Tensor],
    parameters: Sequence[Tensor],
    communicator: Communicator,
) -> tuple[Tensor, ...]:
    r"""The sum of ``map_chunk(chunk, x, *arguments)`` over all chunks of all workers, with a gradient.

    Plain autograd would keep every chunk's intermediates until the backward pass, O(N p) numbers. This function keeps
    none: the backward pass maps each chunk again and pulls the gradient of the sums back through it, so memory is
    O(chunk p) whatever N is. The gradient with respect to the tables stops at x in each chunk and is scattered into one
    accumulator, so that a chunk costs nothing for the rows it does not touch.

    There are exactly two collectives: one sums the outputs in the forward pass, one sums the gradient of the arguments,
    parameters and tables, as one dense vector, in the backward pass. Afterwards all workers hold the same bits, which
    is why nothing that follows needs to communicate.

    :param map_chunk: the map; it may use ``parameters`` directly (a kernel's, say).
    :param arguments: tensors passed to the map, which may have a graph of their own (the Cholesky factor of K_BB).
    :param parameters: leaf tensors that the map uses without being passed them.
    """
    run = _Run(map_chunk, shard, communicator, len(arguments), len(parameters))
    sums: tuple[Tensor, ...] = _ShardedSum.apply(  # type: ignore[no-untyped-call]
        run, *arguments, *parameters, *shard.tables
    )
    return sums


class _Run:
    """What the autograd function needs beside its tensors."""

    def __init__(
        self, map_chunk: ChunkMap, shard: Shard, communicator: Communicator, arguments: int, parameters: int
    ) -> None:
        self.map_chunk, self.shard, self.communicator = map_chunk, shard, communicator
        self.arguments, self.parameters = arguments, parameters


class _ShardedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Run, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.run = run
        # Saved so that an optimiser step between forward and backward is an error, not a wrong gradient.
        ctx.save_for_backward(*tensors)
        return total(run.map_chunk, run.shard, tensors[: run.arguments], run.communicator)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        run: _Run = ctx.run
        tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        first_table = run.arguments + run.parameters
        gradients = [torch.zeros_like(t) if need else None for t, need in zip(tensors, needed, strict=True)]
        tables = gradients[first_table:]
        any_table = any(gradient is not None for gradient in tables)
        for chunk in run.shard.chunks():
            with torch.enable_grad():
                x = chunk.gather().requires_grad_(any_table)
                arguments = [
                    t.detach().requires_grad_(need)
                    for t, need in zip(tensors[: run.arguments], needed[: run.arguments], strict=True)
                ]
                shares = run.map_chunk(chunk, x, *arguments)
            inputs = [*arguments, *tensors[run.arguments : first_table]]
            wanted = [t for t, need in zip(inputs, needed, strict=False) if need] + ([x] if any_table else [])
            pairs = [(s, c) for s, c in zip(shares, cotangents, strict=True) if s.requires_grad]
            if not pairs or not wanted:
                continue
            found = _pull(pairs, wanted)
            if any_table:
                *found, dx = found
                if dx is not None:
                    chunk.scatter_(tables, dx)
            accumulators = [g for g in gradients[:first_table] if g is not None]
            for accumulated, share in zip(accumulators, found, strict=True):
                if share is not None:
                    accumulated.add_(share)
        reduced = iter(_reduce([g for g in gradients if g is not None], run.communicator))
        return None, *(next(reduced) if need else None for need in needed)


def _pull(pairs: Sequence[tuple[Tensor, Tensor]], wanted: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradient of the inner product of shares and cotangents; a share may lack batch dimensions of the sums."""
    with torch.enable_grad():
        inner = torch.stack([(share * cotangent).sum() for share, cotangent in pairs]).sum()
    return list(torch.autograd.grad(inner, wanted, allow_unused=True))


def _reduce(tensors: Sequence[Tensor], communicator: Communicator) -> tuple[Tensor, ...]:
    """Sum tensors over workers as one flat vector for each dtype."""
    reduced: list[Tensor] = list(tensors)
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        places = [place for place, t in enumerate(tensors) if t.dtype == dtype]
        flat = communicator.sum(torch.cat([tensors[place].reshape(-1) for place in places]))
        parts = flat.split([tensors[place].numel() for place in places])
        for place, part in zip(places, parts, strict=True):
            reduced[place] = part.view(tensors[place].shape)
    return tuple(reduced)
