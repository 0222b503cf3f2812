"""What the fused maps of an evaluation share: memory that is used again, and a chunk's kernel and whitened features."""

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from gptf_gpytorch.likelihoods import log_Phi
from gptf_gpytorch.variational.shards import EntryChunk, one_by_one
from gptf_gpytorch.variational.stationary import StationaryPrior
from gptf_gpytorch.variational.statistics import slope_and_curvature

#: Up to this condition number of K_BB, in the Frobenius norm, the explicit form keeps the digits that the tests ask for:
#: experiments/benchmarks/conditioning.py measures how far it could be raised.
EXPLICIT_CONDITION = 5e5


class Scratch:
    """Each thread's own memory, which outlives an evaluation: fresh memory is slow the first time it is touched."""

    def __init__(self) -> None:
        self._threads = threading.local()

    def get(self, name: str, rows: int, columns: int, like: Tensor) -> Tensor:
        """This thread's buffer of that name; what it held is lost."""
        held: dict[str, Tensor] = self._threads.__dict__
        key = f"{name} {like.dtype} {like.device}"
        if key not in held or held[key].numel() < rows * columns:
            held[key] = like.new_empty(rows * columns)
        return held[key][: rows * columns].view(rows, columns)


class Workspace:
    """What the maps of one evaluation share: L^-1 and the scaled inducing points.

    Nothing of a chunk is kept: to compute a kernel's values again takes about as long as to read them from memory.

    :param explicit: whether the way back uses an explicit S; decided from the conditioning if None.
    """

    def __init__(self, prior: StationaryPrior, L: Tensor, scratch: Scratch, *, explicit: bool | None = None) -> None:
        self.prior, self.scratch = prior, scratch
        self.p, self.D = L.size(-1), prior.inducing_points.size(-1)
        self.columns = -(-(self.D + 2) // 4) * 4  # products of round sizes are faster
        with torch.no_grad():
            eye = torch.eye(self.p, dtype=L.dtype, device=L.device)
            self.L_inv: Tensor = torch.linalg.solve_triangular(L, eye, upper=False).contiguous()
            self.condition = float(L.square().sum() * self.L_inv.square().sum())
            self.explicit = self.condition <= EXPLICIT_CONDITION if explicit is None else explicit
            self.lengthscale = prior.lengthscale.detach().expand(self.D)
            self.outputscale = float(prior.outputscale)
            self.mean = 0.0 if prior.mean is None else float(prior.mean)
            b = prior.inducing_points.detach() / self.lengthscale
            self.centre = b.mean(0)
            self.b = b - self.centre  # [p, D]
            self.B_aug = L.new_zeros(self.p, self.columns)  # [b, -|b|^2 / 2, 1, 0]
            self.B_aug[:, : self.D] = self.b
            self.B_aug[:, self.D] = -0.5 * self.b.square().sum(-1)
            if not prior.slope_differs:
                self.B_aug[:, self.D] += math.log(self.outputscale)  # RBF: exp(log s - d^2 / 2)
            self.B_aug[:, self.D + 1] = 1.0
            self.b_ones = L.new_zeros(self.columns, self.p)  # [b, 1, 0]'
            self.b_ones[: self.D] = self.b.T
            self.b_ones[self.D] = 1.0

    @property
    def path(self) -> str:
        """The path in words."""
        return f"fused {self.prior.name}, {'explicit S' if self.explicit else 'whitened both ways'}"

    def buffer(self, name: str, rows: int, columns: int) -> Tensor:
        """This thread's buffer of that name; what it held is lost."""
        return self.scratch.get(name, rows, columns, self.L_inv)

    def runs(self, chunks: Sequence[EntryChunk]) -> Iterable[EntryChunk]:
        """The same entries, in pieces of the size that the methods below want."""
        return one_by_one(chunks)

    def moments(self, run: EntryChunk, row: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of v w w' `[p, p]` and of v w row `[p]`."""
        w, v = self._whitened(run), run.weights
        return self._gram(w, v), w @ (row if v is None else v * row)

    def probit(self, run: EntryChunk, eta: Tensor, *, curved: bool) -> "ProbitSums":
        """What Theorem 2 and the solver for lambda need, t = s (mu + eta' w).

        :param curved: whether the Gram matrix is weighted with the curvatures h, as the solver wants it.
        """
        w, v, s = self._whitened(run), run.weights, 2.0 * run.y - 1.0
        mu = self.mean if run.offset is None else self.mean + run.offset[0]
        t = s * (eta @ w + mu)
        slope, h = slope_and_curvature(t)
        row, value, g = s * slope, log_Phi(t), h if curved else None
        moved, weights = row, g
        if v is not None:
            moved, value, weights = v * row, v * value, v if g is None else v * g
        return ProbitSums(self._gram(w, weights), value.sum(), w @ moved, row)

    def back(
        self,
        run: EntryChunk,
        left: Tensor,
        column: Tensor,
        row: Tensor,
        tables: Sequence[Tensor | None],
        *,
        along: bool,
    ) -> "Pulled":
        """The way back, K_bar being v * (M + column row'), M = left K in the explicit form and L^-T left w else.

        :param tables: what the gradient of x is added to.
        :param along: whether column' k of each entry is wanted.
        """
        v, D, found = run.weights, self.D, self._features(run, slope=True, whiten=not self.explicit)
        E = self.buffer("K_bar", self.p, row.numel())
        if found.w is None:
            torch.mm(left, found.K, out=E)
        else:
            w_bar = torch.mm(left, found.w, out=self.buffer("w_bar", *E.shape))
            for first, last in _blocks(self.p):
                torch.mm(self.L_inv[first:, first:last].T, w_bar[first:], out=E[first:last])
        E.addr_(column, row)
        if v is not None:
            E.mul_(v)
        total = (E * found.K).sum() if self.prior.slope_differs else None
        E.mul_(found.H)
        to_b = E @ found.x.T  # E x, E 1, ...
        to_x = torch.mm(self.b_ones, E, out=self.buffer("to_x", *found.x.shape))  # (E' b)', (E' 1)', 0
        dx = to_x[:D].sub_(to_x[D] * found.x[:D])
        if any(table is not None for table in tables):
            run.scatter_(tables, (dx / self.lengthscale[:, None]).T)
        product = column @ found.K if along else None
        return Pulled(to_b, (dx * found.x[:D]).sum(1), to_b[:, D].sum() if total is None else total, product)

    def project(self, run: EntryChunk, lam: Tensor, T: Tensor) -> tuple[Tensor, Tensor]:
        """Of each entry, lam' k and |T k|^2 `[n]`."""
        K = self._features(run, whiten=False).K
        product = torch.mm(T, K, out=self.buffer("product", len(T), K.size(-1)))
        return lam @ K, product.square_().sum(0)

    def _whitened(self, chunk: EntryChunk) -> Tensor:
        w = self._features(chunk).w
        assert w is not None  # noqa: S101
        return w

    def _gram(self, w: Tensor, weights: Tensor | None) -> Tensor:
        """The sum of v w w' `[p, p]`."""
        if weights is not None:
            w = torch.mul(w, weights.sqrt(), out=self.buffer("root", *w.shape))
        return w @ w.T

    def _features(self, chunk: EntryChunk, *, slope: bool = False, whiten: bool = True) -> "_Features":
        """The kernel of a chunk and what is asked for beside it, in this thread's buffers.

        :param slope: H is needed.
        :param whiten: w is needed.
        """
        D, p, n = self.D, self.p, chunk.rows.stop - chunk.rows.start
        x, K = self.buffer("x", self.columns, n), self.buffer("K", p, n)
        torch.div(chunk.gather().T, self.lengthscale[:, None], out=x[:D]).sub_(self.centre[:, None])
        x[D] = 1.0
        torch.sum(x[:D].square(), 0, out=x[D + 1]).mul_(-0.5)
        x[D + 2 :] = 0.0
        torch.mm(self.B_aug, x, out=K)
        H = self.buffer("H", p, n) if slope and self.prior.slope_differs else None
        self.prior.values(K, self.outputscale, H)
        w = None
        if whiten:
            w = self.buffer("w", p, n)
            for first, last in _blocks(p):
                torch.mm(self.L_inv[first:last, :last], K[:last], out=w[first:last])
        return _Features(x, K, K if H is None else H, w)


@dataclass(frozen=True)
class _Features:
    """A chunk, mapped."""

    x: Tensor  # [D + 2 or more, n]: scaled and centred x, 1, -|x|^2 / 2, 0
    K: Tensor  # [p, n]
    H: Tensor  # [p, n]
    w: Tensor | None  # [p, n]


class ProbitSums(NamedTuple):
    """Sums over entries at a given eta, and the slope of each."""

    W: Tensor  # [p, p]: of v w w', or of v h w w'
    log_Phi: Tensor  # []: of v log Phi(t)
    a5: Tensor  # [p]: of v w s rho(t)
    slope: Tensor  # [n]: s rho(t)


@dataclass(frozen=True)
class Pulled:
    """Sums over entries of the gradient, in terms of E = K_bar * H."""

    to_b: Tensor  # [p, D + 1 or more]: E x, E 1
    dx_x: Tensor  # [D]: the sum of dx * x, both scaled
    d_scale: Tensor  # []: the sum of K_bar * K
    along: Tensor | None  # [n]: column' k, where it was asked for


def _blocks(p: int, rows: int = 36) -> list[tuple[int, int]]:
    """Blocks of rows by which a product with a triangular matrix skips most of its zeros."""
    return list(pairwise([*range(0, p, rows), p]))
