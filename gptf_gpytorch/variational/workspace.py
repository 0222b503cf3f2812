"""What the fused maps of an evaluation share: memory that is used again, and a chunk's kernel and whitened features."""

import math
import threading
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from gptf_gpytorch.variational.stationary import StationaryPrior
from gptf_gpytorch.variational.statistics import EntryChunk

#: Bytes of kernel chunks that one evaluation may keep for its later passes, whatever N is.
CACHE_BYTES = 256 * 2**20
#: Up to this condition number of K_BB, in the Frobenius norm, the explicit form keeps the digits that the tests ask for:
#: experiments/benchmarks/conditioning.py measures how far it could be raised.
EXPLICIT_CONDITION = 5e5


class Arena:
    """Memory that outlives an evaluation: each thread's buffers, and kernel chunks up to a fixed budget.

    Fresh memory is slow the first time it is touched, and an evaluation touches a lot of it.
    """

    def __init__(self, budget: int = CACHE_BYTES) -> None:
        self._threads = threading.local()
        self._chunks: dict[tuple[int, ...], dict[str, Tensor]] = {}
        self._lock, self._left = threading.Lock(), budget

    def buffer(self, name: str, rows: int, columns: int, like: Tensor) -> Tensor:
        """This thread's buffer of that name; what it held is lost."""
        held: dict[str, Tensor] = self._threads.__dict__
        key = f"{name} {like.dtype} {like.device}"
        if key not in held or held[key].numel() < rows * columns:
            held[key] = like.new_empty(rows * columns)
        return held[key][: rows * columns].view(rows, columns)

    def chunk(self, key: tuple[int, ...], shapes: dict[str, tuple[int, int]], like: Tensor) -> dict[str, Tensor] | None:
        """Tensors that stay with a chunk from one evaluation to the next, or None if the budget is spent."""
        with self._lock:
            held = self._chunks.get(key)
            if (
                held is None
                or {name: tuple(tensor.shape) for name, tensor in held.items()} != shapes
                or held["x"].dtype != like.dtype
            ):
                size = like.element_size() * sum(rows * columns for rows, columns in shapes.values())
                if held is not None:
                    self._left += sum(t.numel() * t.element_size() for t in self._chunks.pop(key).values())
                if size > self._left:
                    return None
                self._left -= size
                held = self._chunks[key] = {name: like.new_empty(shape) for name, shape in shapes.items()}
            return held


class Workspace:
    """What the maps of one evaluation share: L^-1, the scaled inducing points, and the chunks that were mapped.

    :param explicit: whether the way back uses an explicit S; decided from the conditioning if None.
    :param many_passes: whether the whitened features will be needed again before the way back, as they are for lambda.
    """

    def __init__(
        self,
        prior: StationaryPrior,
        L: Tensor,
        arena: Arena,
        *,
        explicit: bool | None = None,
        many_passes: bool = False,
    ) -> None:
        self.prior, self.arena = prior, arena
        self.p, self.D = L.size(-1), prior.inducing_points.size(-1)
        self.columns = -(-(self.D + 2) // 4) * 4  # products of round sizes are faster
        with torch.no_grad():
            eye = torch.eye(self.p, dtype=L.dtype, device=L.device)
            self.L_inv: Tensor = torch.linalg.solve_triangular(L, eye, upper=False)
            self.condition = float(L.square().sum() * self.L_inv.square().sum())
            self.explicit = self.condition <= EXPLICIT_CONDITION if explicit is None else explicit
            self.keeps_w = many_passes or not self.explicit
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
        self._lower = Triangle(self.L_inv)
        self._upper = Triangle(self.L_inv.T, upper=True)
        self._mapped: dict[int, Features] = {}

    @property
    def path(self) -> str:
        """The path in words."""
        return f"fused {self.prior.name}, {'explicit S' if self.explicit else 'whitened both ways'}"

    def buffer(self, name: str, rows: int, columns: int) -> Tensor:
        """This thread's buffer of that name; what it held is lost."""
        return self.arena.buffer(name, rows, columns, self.L_inv)

    def features(self, chunk: EntryChunk, *, slope: bool = False, whiten: bool = True) -> "Features":
        """The kernel's values at a chunk, and what else is asked for, from this evaluation's memory or computed now."""
        mapped = self._mapped.get(chunk.rows.start)
        if mapped is not None:
            return mapped
        n, p, differs = chunk.rows.stop - chunk.rows.start, self.p, self.prior.slope_differs
        shapes = {"x": (self.columns, n), "K": (p, n)}
        shapes |= {"w": (p, n)} if self.keeps_w else {}
        shapes |= {"H": (p, n)} if differs else {}
        kept = self.arena.chunk((chunk.rows.start, n), shapes, self.L_inv)
        keep = kept is not None
        held = kept or {name: self.buffer(name, *shape) for name, shape in shapes.items()}
        x, K, w = held["x"], held["K"], None
        H = held["H"] if differs and (slope or keep) else None
        if whiten or (keep and self.keeps_w):
            w = held["w"] if self.keeps_w else self.buffer("w", p, n)
        self._fill(chunk, x, K, H, w)
        found = Features(x, K, H if differs else K, w)
        if keep:
            self._mapped[chunk.rows.start] = found if self.keeps_w else replace(found, w=None)
        return found

    def _fill(self, chunk: EntryChunk, x: Tensor, K: Tensor, H: Tensor | None, w: Tensor | None) -> None:
        """Write what :class:`Features` holds of a chunk: H and w only where they are given."""
        self._inputs(chunk, x)
        torch.mm(self.B_aug, x, out=K)
        self._values(K, H)
        if w is not None:
            self._lower.mm(K, w)

    def back(self, found: "Features", left: Tensor, column: Tensor, row: Tensor, weights: Tensor | None) -> "Pulled":
        """The way back through a chunk, K_bar being v * (left K + column row') or v * L^-T (left w + column row')."""
        K_bar = self.buffer("K_bar", self.p, row.numel())
        if self.explicit:
            torch.mm(left, found.K, out=K_bar)
        else:
            assert found.w is not None  # noqa: S101 the whitened form asks for w
            w_bar = self.buffer("w_bar", *K_bar.shape)
            torch.mm(left, found.w, out=w_bar)
            self._upper.mm(w_bar, K_bar)
            column = column @ self.L_inv
        total = self._weigh(K_bar, column, row, found, weights)
        to_b = K_bar @ found.x.T  # [p, columns]: E x, E 1, ...
        to_x = torch.mm(self.b_ones, K_bar, out=self.buffer("to_x", *found.x.shape))  # (E' b)', (E' 1)', 0
        dx, dx_x = self._unscale(to_x, found.x)
        return Pulled(to_b, dx, dx_x, to_b[:, self.D].sum() if total is None else total)

    # What is between the products. A subclass may have a faster way.

    def _inputs(self, chunk: EntryChunk, x: Tensor) -> None:
        """Scaled and centred inputs, 1, minus half their squared norms, 0."""
        D = self.D
        torch.div(chunk.gather().T, self.lengthscale[:, None], out=x[:D]).sub_(self.centre[:, None])
        x[D] = 1.0
        torch.sum(x[:D].square(), 0, out=x[D + 1]).mul_(-0.5)
        x[D + 2 :] = 0.0

    def _values(self, half: Tensor, H: Tensor | None) -> None:
        """The kernel's values in place of minus half the squared distances, and H where it is given."""
        self.prior.values(half, self.outputscale, H)

    def _weigh(
        self, K_bar: Tensor, column: Tensor, row: Tensor, found: "Features", weights: Tensor | None
    ) -> Tensor | None:
        """E = v * (K_bar + column row') * H in place of K_bar; the sum of K_bar * K where that is not the sum of E."""
        assert found.H is not None  # noqa: S101 the way back asks for it
        K_bar.addr_(column, row)
        if weights is not None:
            K_bar.mul_(weights)
        total = (K_bar * found.K).sum() if self.prior.slope_differs else None
        K_bar.mul_(found.H)
        return total

    def _unscale(self, to_x: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of the inputs as they came `[n, D]`, and the sum of that of x times x `[D]`."""
        D = self.D
        dx = to_x[:D].sub_(to_x[D] * x[:D])
        return (dx / self.lengthscale[:, None]).T, (dx * x[:D]).sum(1)

    def square_norms(self, left: Tensor, K: Tensor) -> Tensor:
        """The squared length of each column of ``left @ K`` `[n]`."""
        product = self.buffer("product", len(left), K.size(-1))
        return torch.mm(left, K, out=product).square_().sum(0)


@dataclass(frozen=True)
class Features:
    """A chunk, mapped."""

    x: Tensor  # [D + 2 or more, n]: scaled and centred x, 1, -|x|^2 / 2, 0
    K: Tensor  # [p, n]
    H: Tensor | None  # [p, n]
    w: Tensor | None  # [p, n]


@dataclass(frozen=True)
class Pulled:
    """The gradient of a chunk's share, in terms of E = K_bar * H."""

    to_b: Tensor  # [p, D + 1 or more]: E x, E 1
    dx: Tensor  # [n, D], of the points as they came
    dx_x: Tensor  # [D]: the sum of dx * x, both scaled
    d_scale: Tensor  # []: the sum of K_bar * K


class Triangle:
    """Products with a triangular matrix, by blocks of rows that skip most of its zeros."""

    def __init__(self, matrix: Tensor, *, upper: bool = False, block: int = 32) -> None:
        p = matrix.size(-1)
        edges = [*range(0, p - block // 2, block), p] if p > block else [0, p]
        self.parts = []
        for first, last in pairwise(edges):
            columns = slice(first, p) if upper else slice(0, last)
            self.parts.append((slice(first, last), columns, matrix[first:last, columns].contiguous()))

    def mm(self, right: Tensor, out: Tensor) -> None:
        """The product `[p, n]`."""
        for rows, columns, part in self.parts:
            torch.mm(part, right[columns], out=out[rows])
