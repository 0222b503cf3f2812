"""The fused map with compiled loops: a thread's whole share of the entries is one call.

In torch it takes some twenty calls a chunk, each of which takes the interpreter's lock and hands it over; with loops
that need no interpreter the blocks can be small enough for the second level cache, too. Only for float64 on a CPU.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.factors import LatentFactors
from gptf_gpytorch.variational import loops, rows
from gptf_gpytorch.variational.shards import EntryChunk, EntryShard
from gptf_gpytorch.variational.workspace import ProbitSums, Pulled, Workspace

_NOTHING = np.empty(0)


class CompiledWorkspace(Workspace):
    """A :class:`Workspace` whose loops are compiled."""

    def __init__(self, *where: Any, **options: Any) -> None:
        super().__init__(*where, **options)
        self._twice_nu = round(2.0 * self.prior.nu) if self.prior.slope_differs else 0
        # A block's kernel, features and gradient stay in the cache of a core.
        self._block = min(max(50_000 // self.p // 8 * 8, 128), 2000)
        self._tables: tuple[Any, Any, Any] | None = None
        self._runs: dict[tuple[int, int], EntryChunk] = {}
        self._own: dict[tuple[int, int], tuple[Any, Any]] = {}

    @property
    def path(self) -> str:
        """The path in words."""
        return f"{super().path}, compiled"

    def runs(self, chunks: Sequence[EntryChunk]) -> Iterable[EntryChunk]:
        """All of them at once, unless x has to be made first, of plain inputs."""
        if not chunks or chunks[0].shard.factors is None:
            return super().runs(chunks)
        run = EntryChunk(chunks[0].shard, slice(chunks[0].rows.start, chunks[-1].rows.stop))
        # What was made of few entries serves further passes and the way back.
        return [self._runs.setdefault(_place(run), run) if _are_few(run.shard) else run]

    def moments(self, run: EntryChunk, row: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Workspace.moments`."""
        constants, indices = self._entries(run)
        W = np.zeros((self.p + 1, self.p + 1))
        loops.moments(constants, self.L_inv.numpy(), indices, row.numpy(), _weights(run), self._block, W)
        return _mirrored(W[: self.p, : self.p]), torch.from_numpy(W[: self.p, self.p])

    def probit(self, run: EntryChunk, eta: Tensor, *, curved: bool) -> ProbitSums:
        """See :meth:`Workspace.probit`."""
        constants, indices = self._entries(run)
        W, a5, slope = np.zeros((self.p, self.p)), np.zeros(self.p), np.empty(len(indices))
        total = loops.probit(
            constants,
            self.L_inv.numpy(),
            eta.numpy().reshape(1, -1),
            self.mean,
            _NOTHING if run.offset is None else run.offset[0].numpy(),
            curved,
            indices,
            run.y.contiguous().numpy(),
            _weights(run),
            self._block,
            W,
            a5,
            slope,
        )
        return ProbitSums(_mirrored(W), eta.new_tensor(total), torch.from_numpy(a5), torch.from_numpy(slope))

    def back(
        self,
        run: EntryChunk,
        left: Tensor,
        column: Tensor,
        row: Tensor,
        tables: Sequence[Tensor | None],
        *,
        along: bool,
    ) -> Pulled:
        """See :meth:`Workspace.back`."""
        constants, indices = self._entries(run)
        flat = np.zeros(constants[0].size if any(table is not None for table in tables) else 0)
        to_b, dx_x, product = np.zeros((self.p, self.columns)), np.zeros(self.D), np.empty(len(indices) if along else 0)
        total = loops.back(
            constants,
            self.L_inv.numpy(),
            self.b_ones.numpy(),
            self.explicit,
            left.contiguous().numpy(),
            column.numpy(),
            indices,
            row.numpy(),
            _weights(run),
            self._block,
            to_b,
            dx_x,
            product,
            flat,
        )
        if flat.size:
            self._add(torch.from_numpy(flat), run, tables)
        scale = total if self._twice_nu else to_b[:, self.D].sum()
        found = (torch.from_numpy(to_b), torch.from_numpy(dx_x), self.L_inv.new_tensor(scale))
        return Pulled(*found, torch.from_numpy(product) if along else None)

    def project(self, run: EntryChunk, lam: Tensor, T: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Workspace.project`."""
        constants, indices = self._entries(run)
        means, norms = np.empty(len(indices)), np.empty(len(indices))
        loops.project(constants, lam.numpy().reshape(1, -1), T.numpy(), indices, self._block, means, norms)
        return torch.from_numpy(means), torch.from_numpy(norms)

    def _entries(self, run: EntryChunk) -> tuple[tuple[Any, ...], Any]:
        """The tables with what else the kernel is made of, and the rows of the tables that each entry has."""
        shard, draws, numbers = run.shard, np.empty(0, dtype=np.int64), np.empty((0, 0))
        if shard.factors is not None and not _are_few(shard):
            tables, indices = self._scaled(shard.factors), _indices(run)
            if shard.draws:
                draws, numbers = _draws(shard, shard.factors), shard.factors.normal_numbers.numpy()
        else:  # its own rows, one after the other
            x = run.gather() if shard.factors is None else torch.from_numpy(self._own_rows(run, shard.factors)[0])
            flat = (x / self.lengthscale - self.centre).reshape(-1).numpy()
            tables = flat, np.array([self.D]), np.array([0])
            indices = np.arange(len(x))[:, None]
        return (*tables, self.B_aug.numpy(), self._twice_nu, self.outputscale, draws, numbers), indices

    def _own_rows(self, run: EntryChunk, factors: LatentFactors) -> tuple[Any, Any]:
        """The inputs of few entries, and by how much they were drawn."""
        if _place(run) not in self._own:
            shard, indices = run.shard, _indices(run)
            x, moves = np.empty((len(indices), self.D)), np.empty((len(indices) if shard.draws else 0, self.D))
            for mode, first in enumerate(_columns(factors)):
                rows.gather(factors[mode].detach().numpy(), indices, mode, first, x)
                if shard.draws:
                    rows.gather(factors.log_deviations[mode].detach().numpy(), indices, mode, first, moves)
            if shard.draws:
                places, numbers = np.empty(len(indices), dtype=np.int64), factors.normal_numbers.numpy()
                loops.drawn(indices, 0, _draws(shard, factors), len(numbers), places)
                rows.draw(moves, places, numbers)
                x += moves
            self._own[_place(run)] = x, moves
        return self._own[_place(run)]

    def _scaled(self, factors: LatentFactors) -> tuple[Any, Any, Any]:
        """The tables, scaled and centred once for all entries, with their ranks and where each starts.

        Where there are draws, the deviations of all factors stand behind all factors.
        """
        if self._tables is None:
            ranks, flat = list(factors.ranks), []
            parts = zip(factors.weights, self.lengthscale.split(ranks), self.centre.split(ranks), strict=True)
            for table, lengthscale, centre in parts:
                flat.append((table.detach() / lengthscale - centre).reshape(-1))
            starts = np.cumsum([0, *(part.numel() for part in flat)])[:-1]
            for log, lengthscale in zip(factors.log_deviations, self.lengthscale.split(ranks), strict=False):
                flat.append((log.detach().exp() / lengthscale).reshape(-1))
            self._tables = torch.cat(flat).numpy(), np.array(ranks), starts
        return self._tables

    def _add(self, flat: Tensor, run: EntryChunk, tables: Sequence[Tensor | None]) -> None:
        """Add the gradient of scaled rows to that of the tables they came from."""
        factors = run.shard.factors
        if factors is None:
            run.scatter_(tables, flat.view(-1, self.D) / self.lengthscale)
            return
        if _are_few(run.shard):
            dx, indices = (flat.view(-1, self.D) / self.lengthscale).numpy(), _indices(run)
            columns = _columns(factors)
            for place, table in enumerate(tables[: 2 * len(factors) if run.shard.draws else len(factors)]):
                if place == len(factors):
                    dx *= self._own_rows(run, factors)[1]
                if table is not None:
                    rows.scatter(dx, indices, place % len(factors), columns[place % len(factors)], table.numpy())
            return
        # That of the logs of deviations is in no units.
        scales = [
            *self.lengthscale.split(list(factors.ranks)),
            *(self.lengthscale.new_ones(1) for _ in factors.log_deviations),
        ]
        parts = flat.split([table.numel() for table in (*factors.weights, *factors.log_deviations)])
        for table, part, scale in zip(tables, parts, scales, strict=False):  # those of biases come after
            if table is not None:
                table.addcdiv_(part.view(table.shape), scale)


def _are_few(shard: EntryShard) -> bool:
    """Whether there are fewer entries than entities, of which not all need be scaled then."""
    return shard.factors is not None and len(shard) < sum(shard.factors.shape)


def _place(run: EntryChunk) -> tuple[int, int]:
    """What tells it from other runs of its shard."""
    return run.rows.start, run.rows.stop


def _columns(factors: LatentFactors) -> Any:
    """Of every mode, the first of its columns of x."""
    return np.cumsum([0, *factors.ranks[:-1]])


def _indices(run: EntryChunk) -> Any:
    found = run.indices.numpy()
    if found.dtype not in (np.int32, np.int64) or not found.flags.c_contiguous:
        return np.ascontiguousarray(found, dtype=np.int64)
    return found


def _draws(shard: EntryShard, factors: LatentFactors) -> Any:
    """See ``loops``."""
    return np.array([shard.draws.start, shard.copies, *factors.hashing(shard.turn)])


def _weights(run: EntryChunk) -> Any:
    weights = run.weights
    return _NOTHING if weights is None else weights.contiguous().numpy()


def _mirrored(upper: Any) -> Tensor:
    """The symmetric matrix with this upper triangle."""
    return torch.from_numpy(np.triu(upper) + np.triu(upper, 1).T)
