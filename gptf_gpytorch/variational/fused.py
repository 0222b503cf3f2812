r"""The map for stationary kernels, fused: kernel, statistics and analytic gradient of a chunk in a few matrix products.

For :math:`k(x, b) = s\, f(|\tilde x - \tilde b|^2)` in length-scaled coordinates, everything that the way back needs
of the kernel is :math:`E = \bar K \circ H` with :math:`H = -2 s f'`:

.. math:: \partial \tilde x_j = \sum_i E_{ij} (\tilde b_i - \tilde x_j), \qquad
    \partial \tilde b_i = \sum_j E_{ij} (\tilde x_j - \tilde b_i),

and the gradients of lengthscales and outputscale are sums of the same arrays. The squared distances come from one
product of augmented matrices, :math:`[\tilde b, -\frac12|\tilde b|^2, 1]\,[\tilde x, 1, -\frac12|\tilde x|^2]'`.

:math:`\bar K` is formed in one of two ways, with G and g the gradients of W and c:

- *whitened*: :math:`L^{-T} ((G + G') w + g r')`, as accurate as the generic path;
- *explicit*: :math:`S K + (L^{-T} g) r'` with :math:`S = L^{-T} (G + G') L^{-1}`, one product less, for a
well-conditioned K_BB.
"""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.kernels import FactorRBFKernel
from gptf_gpytorch.likelihoods import log_Phi, rho
from gptf_gpytorch.variational.statistics import (
    CurvatureStatistics,
    EntryChunk,
    GaussianStatistics,
    ProbitStatistics,
    slope_and_curvature,
)

#: Bytes of kernel chunks that one evaluation may keep for its later passes, whatever N is.
CACHE_BYTES = 256 * 2**20
#: Up to this condition number of K_BB the explicit form keeps the digits that the tests ask for.
EXPLICIT_CONDITION = 1e5


_Values = Callable[[Tensor, float, Tensor | None], None]


def _rbf(half: Tensor, scale: float, slope: Tensor | None) -> None:
    half.exp_()  # the scale is in the exponent already


def _matern(nu: float) -> _Values:
    root = math.sqrt(2.0 * nu)

    def values(half: Tensor, scale: float, slope: Tensor | None) -> None:
        r = half.mul_(-2.0).clamp_(min=1e-30).sqrt_()  # the distance, in place of minus half its square
        decay = torch.exp(r * -root).mul_(scale)
        if nu == 0.5:
            polynomial, derivative = torch.ones_like(r), r.reciprocal()
        elif nu == 1.5:
            polynomial, derivative = 1.0 + root * r, torch.full_like(r, 3.0)
        else:
            linear = 1.0 + root * r
            polynomial, derivative = linear + (5.0 / 3.0) * r * r, (5.0 / 3.0) * linear
        if slope is not None:
            torch.mul(decay, derivative, out=slope)
        torch.mul(decay, polynomial, out=half)

    return values


@dataclass(frozen=True)
class StationaryPrior:
    """A prior that the fused map knows: a stationary ARD kernel and a constant mean.

    :param name: of the kernel.
    :param values: turns minus half the squared distances into the kernel's values, in place, and writes H to its last
        argument where that is given; for RBF, H equals the values.
    """

    name: str
    values: _Values
    inducing_points: Tensor  # [p, D]
    lengthscale: Tensor  # [D] or [1]
    outputscale: Tensor  # []
    mean: Tensor | None  # [], None for zero

    @property
    def slope_differs(self) -> bool:
        """Whether H is another matrix than K."""
        return self.name != "RBF"

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """What a gradient is returned for."""
        return (self.inducing_points, self.lengthscale, self.outputscale, *(() if self.mean is None else (self.mean,)))


class KernelPrior:
    """A model whose prior is its ``mean_module`` and its ``covar_module``, and nothing else.

    A model that inherits this ``forward``, as :class:`~gptf_gpytorch.GPTF` does, takes the fused path where its
    kernel and mean allow it; a ``forward`` of another kind takes the generic one.
    """

    covar_module: gpytorch.kernels.Kernel
    mean_module: gpytorch.means.Mean

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior at x `[..., n, D]`."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def recognise(model: Any, inducing_points: Tensor) -> StationaryPrior | None:
    """The prior of a model that uses one of the fused kernels and a zero or constant mean, or None.

    Only exact types count: a subclass may compute something else.
    """
    if getattr(type(model), "forward", None) is not KernelPrior.forward:
        return None
    kernel, outputscale = model.covar_module, inducing_points.new_ones(())
    if type(kernel) is gpytorch.kernels.ScaleKernel and kernel.active_dims is None:
        kernel, outputscale = kernel.base_kernel, kernel.outputscale
    name = "RBF"
    values: _Values = _rbf
    if type(kernel) is gpytorch.kernels.MaternKernel and kernel.nu in (0.5, 1.5, 2.5):
        name, values = f"Matern {kernel.nu}", _matern(kernel.nu)
    elif type(kernel) not in (gpytorch.kernels.RBFKernel, FactorRBFKernel):
        return None
    mean: Tensor | None = None
    if type(model.mean_module) is gpytorch.means.ConstantMean:
        mean = model.mean_module.constant
    elif type(model.mean_module) is not gpytorch.means.ZeroMean:
        return None
    lengthscale = kernel.lengthscale
    plain = kernel.active_dims is None and lengthscale.dim() == 2 and outputscale.dim() == 0
    if not plain or inducing_points.dim() != 2 or (mean is not None and mean.dim() != 0):
        return None
    return StationaryPrior(name, values, inducing_points, lengthscale.squeeze(-2), outputscale, mean)


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
                or any(tuple(held[n].shape) != s for n, s in shapes.items())
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
        # Rows beyond the p-th hold the vector that the way back appends, and zeros: products of round sizes are faster.
        self.rows, self.columns = _round_up(self.p + 1, 8), _round_up(self.D + 2, 4)
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
        self._lower = _Triangle(self.L_inv)
        self._upper = _Triangle(self.L_inv.T, upper=True)
        self._mapped: dict[int, _Features] = {}

    @property
    def path(self) -> str:
        """The path in words."""
        return f"fused {self.prior.name}, {'explicit S' if self.explicit else 'whitened both ways'}"

    def buffer(self, name: str, rows: int, columns: int) -> Tensor:
        """This thread's buffer of that name; what it held is lost."""
        return self.arena.buffer(name, rows, columns, self.L_inv)

    def unwhiten(self, w_bar: Tensor, out: Tensor) -> None:
        """L^-T w_bar."""
        self._upper.mm(w_bar, out)

    def features(self, chunk: EntryChunk, *, slope: bool = False, whiten: bool = True) -> "_Features":
        """The kernel's values at a chunk, and what else is asked for, from this evaluation's memory or computed now."""
        mapped = self._mapped.get(chunk.rows.start)
        if mapped is not None:
            return mapped
        n, p, D, differs = chunk.rows.stop - chunk.rows.start, self.p, self.D, self.prior.slope_differs
        shapes = {"x": (self.columns, n), "K": (self.rows, n)}
        shapes |= {"w": (self.rows, n)} if self.keeps_w else {}
        shapes |= {"H": (p, n)} if differs else {}
        kept = self.arena.chunk((chunk.rows.start, n), shapes, self.L_inv)
        keep = kept is not None
        held = kept or {name: self.buffer(name, *shape) for name, shape in shapes.items()}
        x, K = held["x"], held["K"]
        torch.div(chunk.gather().T, self.lengthscale[:, None], out=x[:D]).sub_(self.centre[:, None])
        x[D] = 1.0
        torch.sum(x[:D].square(), 0, out=x[D + 1]).mul_(-0.5)
        x[D + 2 :] = 0.0
        torch.mm(self.B_aug, x, out=K[:p])
        H = held["H"] if differs and (slope or keep) else None
        self.prior.values(K[:p], self.outputscale, H)
        K[p:] = 0.0
        found = _Features(x, K, H if differs else K[:p], None)
        if whiten or (keep and self.keeps_w):
            w = held["w"] if self.keeps_w else self.buffer("w", self.rows, n)
            self._lower.mm(K[:p], w[:p])
            w[p:] = 0.0
            found = replace(found, w=w)
        if keep:
            self._mapped[chunk.rows.start] = found if self.keeps_w else replace(found, w=None)
        return found


@dataclass(frozen=True)
class _Features:
    """A chunk, mapped: rows of K and w from the p-th on are 0, and the p-th is free to be used."""

    x: Tensor  # [D + 2 or more, n]: scaled and centred x, 1, -|x|^2 / 2, 0
    K: Tensor  # [p + 1 or more, n]
    H: Tensor | None  # [p, n]
    w: Tensor | None  # [p + 1 or more, n]


class _Triangle:
    """Products with a triangular matrix, by blocks of rows that skip most of its zeros."""

    def __init__(self, matrix: Tensor, *, upper: bool = False, block: int = 32) -> None:
        p = matrix.size(-1)
        edges = [*range(0, p - block // 2, block), p] if p > block else [0, p]
        self._parts = []
        for first, last in pairwise(edges):
            columns = slice(first, p) if upper else slice(0, last)
            self._parts.append((slice(first, last), columns, matrix[first:last, columns].contiguous()))

    def mm(self, right: Tensor, out: Tensor) -> None:
        """The product `[p, n]`."""
        for rows, columns, part in self._parts:
            torch.mm(part, right[columns], out=out[rows])


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _gram(w: Tensor) -> Tensor:
    """W w', at half the price where the BLAS within reach has a symmetric product."""
    if w.device.type == "cpu":
        array = w.numpy()
        return torch.from_numpy(np.matmul(array, array.T))
    return w @ w.T


class FusedMap:
    """What the fused maps share."""

    threaded = True

    def __init__(self, workspace: Workspace) -> None:
        self.space = workspace
        self.leaves = workspace.prior.leaves
        self._left_of: tuple[Tensor, Tensor] | None = None

    def _zeros(self, *shape: int) -> Tensor:
        return self.space.L_inv.new_zeros(shape)

    def _left(self, G: Tensor, g: Tensor) -> Tensor:
        """[G + G', g, 0] or, in the explicit form, [S, L^-T g, 0]; the same for all chunks of a way back."""
        if self._left_of is None or self._left_of[0] is not G:
            space, p = self.space, self.space.p
            left = G.new_zeros(p, space.rows)
            left[:, :p], left[:, p] = G + G.T, g
            if space.explicit:
                left[:, :p] = space.L_inv.T @ left[:, :p] @ space.L_inv
                left[:, p] = space.L_inv.T @ g
            self._left_of = (G, left)
        return self._left_of[1]

    def _pull(
        self,
        chunk: EntryChunk,
        found: _Features,
        G: Tensor,
        g: Tensor,
        row: Tensor,
        trace: float,
        mean: Callable[[], Tensor],
        wants_x: bool,
    ) -> tuple[list[Tensor | None], Tensor | None]:
        """The way back, given that the gradient of w is v * ((G + G') w + g row').

        :param trace: the gradient of a3.
        :param mean: the gradient of the constant mean, computed only if there is one.
        """
        space, p, D, n = self.space, self.space.p, self.space.D, row.numel()
        K_bar, left = space.buffer("K_bar", p, n), self._left(G, g)
        if space.explicit:
            found.K[p] = row
            torch.mm(left, found.K, out=K_bar)
        else:
            assert found.w is not None  # noqa: S101 the whitened form asks for w
            found.w[p] = row
            w_bar = space.buffer("w_bar", p, n)
            torch.mm(left, found.w, out=w_bar)
            space.unwhiten(w_bar, K_bar)
        v = chunk.weights
        if v is not None:
            K_bar.mul_(v)
        d_scale = (K_bar * found.K[:p]).sum() if space.prior.slope_differs else None
        assert found.H is not None  # noqa: S101 the way back asks for it
        E, x = K_bar.mul_(found.H), found.x[:D]
        to_b = E @ found.x.T  # [p, columns]: E x, E 1, ...
        to_x = space.b_ones @ E  # [columns, n]: (E' b)', (E' 1)', 0
        db = to_b[:, :D] - to_b[:, D : D + 1] * space.b  # scaled
        dx = to_x[:D].sub_(to_x[D] * x)
        d_lengthscale = -((dx * x).sum(1) + (db * space.b).sum(0)) / space.lengthscale
        if space.prior.lengthscale.numel() == 1:
            d_lengthscale = d_lengthscale.sum(0, keepdim=True)
        d_scale = to_b[:, D].sum() if d_scale is None else d_scale
        count = float(n) if v is None else float(v.sum())
        leaves: list[Tensor | None] = [
            db / space.lengthscale,
            d_lengthscale,
            d_scale / space.outputscale + trace * count,
        ]
        if space.prior.mean is not None:
            leaves.append(mean())
        return leaves, (dx / space.lengthscale[:, None]).T if wants_x else None


class FusedGaussianMap(FusedMap):
    """A chunk to :class:`GaussianStatistics`."""

    def zeros(self) -> GaussianStatistics:
        """The statistics of no entries."""
        p, zero = self.space.p, self._zeros
        return GaussianStatistics(zero(p, p), zero(p), zero(), zero(), zero(), zero())

    def __call__(self, chunk: EntryChunk) -> GaussianStatistics:
        """The statistics of a chunk: W, c and a2 are blocks of one Gram matrix, that of w with r as another row."""
        p, v, w = self.space.p, chunk.weights, self.space.features(chunk).w
        assert w is not None  # noqa: S101
        w[p] = chunk.y - self.space.mean
        gram = _gram(w[: p + 1] if v is None else w[: p + 1] * v.sqrt())
        n = gram.new_tensor(float(w.size(-1)))
        weight = n if v is None else v.sum()
        return GaussianStatistics(gram[:p, :p], gram[:p, p], gram[p, p], self.space.outputscale * weight, weight, n)

    def pull(
        self, chunk: EntryChunk, cotangents: Sequence[Tensor], wanted: Sequence[bool], wants_x: bool
    ) -> tuple[list[Tensor | None], Tensor | None]:
        """The analytic gradient of a chunk's share."""
        G, g, g2, g3, *_ = cotangents
        found = self.space.features(chunk, slope=True, whiten=not self.space.explicit)
        r, v, p = chunk.y - self.space.mean, chunk.weights, self.space.p

        def mean() -> Tensor:
            drift = (self.space.L_inv.T @ g) @ found.K[:p] + 2.0 * g2 * r
            return -(drift if v is None else v * drift).sum()

        return self._pull(chunk, found, G, g, r, float(g3), mean, wants_x)


class FusedProbitMap(FusedMap):
    """A chunk to :class:`ProbitStatistics` at a given eta `[p]`, which gets no gradient."""

    def __init__(self, workspace: Workspace, eta: Tensor) -> None:
        super().__init__(workspace)
        self.eta, self.lam = eta, workspace.L_inv.T @ eta

    def zeros(self) -> ProbitStatistics:
        """The statistics of no entries."""
        p, zero = self.space.p, self._zeros
        return ProbitStatistics(zero(p, p), zero(), zero(p), zero(), zero(), zero())

    def _argument(self, chunk: EntryChunk, found: _Features) -> tuple[Tensor, Tensor]:
        """The signs s and arguments t = s (mu + eta' w) of a chunk."""
        s, p = 2.0 * chunk.y - 1.0, self.space.p
        f = self.lam @ found.K[:p] if found.w is None else self.eta @ found.w[:p]
        return s, s * (f + self.space.mean)

    def __call__(self, chunk: EntryChunk) -> ProbitStatistics:
        """The statistics of a chunk: W and a5 are blocks of one Gram matrix, that of w with s rho(t) as another row."""
        p, v, found = self.space.p, chunk.weights, self.space.features(chunk)
        s, t = self._argument(chunk, found)
        assert found.w is not None  # noqa: S101
        found.w[p] = s * rho(t)
        value, n = log_Phi(t), t.new_tensor(float(t.numel()))
        gram = _gram(found.w[: p + 1] if v is None else found.w[: p + 1] * v.sqrt())
        weight = n if v is None else v.sum()
        fit = value.sum() if v is None else v @ value
        return ProbitStatistics(gram[:p, :p], fit, gram[:p, p], self.space.outputscale * weight, weight, n)

    def pull(
        self, chunk: EntryChunk, cotangents: Sequence[Tensor], wanted: Sequence[bool], wants_x: bool
    ) -> tuple[list[Tensor | None], Tensor | None]:
        """The analytic gradient of a chunk's share."""
        G, g_log, _, g3, *_ = cotangents
        found = self.space.features(chunk, slope=True, whiten=not self.space.explicit)
        s, t = self._argument(chunk, found)
        slope, v = s * rho(t), chunk.weights

        def mean() -> Tensor:
            return g_log * (slope if v is None else v * slope).sum()

        return self._pull(chunk, found, G, g_log * self.eta, slope, float(g3), mean, wants_x)


class FusedCurvatureMap(FusedProbitMap):
    """A chunk to :class:`CurvatureStatistics` at a given eta `[p]`."""

    def zeros(self) -> CurvatureStatistics:  # type: ignore[override]
        """The statistics of no entries."""
        return CurvatureStatistics(self._zeros(), self._zeros(self.space.p), self._zeros(self.space.p, self.space.p))

    def __call__(self, chunk: EntryChunk) -> CurvatureStatistics:  # type: ignore[override]
        """The statistics of a chunk."""
        v, found = chunk.weights, self.space.features(chunk)
        s, t = self._argument(chunk, found)
        assert found.w is not None  # noqa: S101
        w = found.w[: self.space.p]
        slope, h = slope_and_curvature(t)
        slope, value = s * slope, log_Phi(t)
        if v is not None:
            slope, value, h = v * slope, v * value, v * h
        root = torch.mul(w, h.sqrt(), out=self.space.buffer("root", *w.shape))
        return CurvatureStatistics(value.sum(), w @ slope, _gram(root))
