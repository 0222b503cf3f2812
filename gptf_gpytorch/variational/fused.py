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
from dataclasses import dataclass
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
    half.exp_().mul_(scale)


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


class Workspace:
    """What the maps of one evaluation share: L^-1, the scaled inducing points, buffers, and kernel chunks kept.

    :param explicit: whether the way back uses an explicit S; decided from the conditioning if None.
    """

    def __init__(self, prior: StationaryPrior, L: Tensor, explicit: bool | None = None) -> None:
        self.prior, self.p, self.D = prior, L.size(-1), prior.inducing_points.size(-1)
        with torch.no_grad():
            eye = torch.eye(self.p, dtype=L.dtype, device=L.device)
            self.L_inv: Tensor = torch.linalg.solve_triangular(L, eye, upper=False)
            self.condition = float(L.square().sum() * self.L_inv.square().sum())
            self.explicit = self.condition <= EXPLICIT_CONDITION if explicit is None else explicit
            self.lengthscale = prior.lengthscale.detach().expand(self.D)
            self.outputscale = float(prior.outputscale)
            self.mean = 0.0 if prior.mean is None else float(prior.mean)
            b = prior.inducing_points.detach() / self.lengthscale
            self.centre = b.mean(0)
            self.b = b - self.centre  # [p, D]
            ones = torch.ones_like(self.b[:, :1])
            self.B_aug = torch.cat([self.b, -0.5 * self.b.square().sum(-1, keepdim=True), ones], dim=-1)  # [p, D + 2]
            self.b_ones = torch.cat([self.b, ones], dim=-1).T.contiguous()  # [D + 1, p]
        self._buffers = threading.local()
        self._kept: dict[int, _Features] = {}
        self._left = CACHE_BYTES

    @property
    def path(self) -> str:
        """The path in words."""
        return f"fused {self.prior.name}, {'explicit S' if self.explicit else 'whitened both ways'}"

    def buffer(self, name: str, rows: int, columns: int) -> Tensor:
        """This thread's buffer of that name; what it held is lost."""
        held: dict[str, Tensor] = self._buffers.__dict__
        if name not in held or held[name].numel() < rows * columns:
            held[name] = self.L_inv.new_empty(rows * columns)
        return held[name][: rows * columns].view(rows, columns)

    def features(self, chunk: EntryChunk, x: Tensor, *, slope: bool = False, whiten: bool = True) -> "_Features":
        """The kernel's values at a chunk, and what else is asked for, from what was kept or computed now."""
        kept = self._kept.get(chunk.rows.start)
        if kept is not None:
            return kept
        n, p, D = x.size(0), self.p, self.D
        differs = self.prior.slope_differs
        size = x.element_size() * n * ((2 if differs else 1) * (p + 1) + (0 if self.explicit and not whiten else p))
        keep = self._left >= size
        if keep:
            self._left -= size
        fresh = self.L_inv.new_empty if keep else None

        def matrix(name: str, rows: int) -> Tensor:
            return self.buffer(name, rows, n) if fresh is None else fresh(rows, n)

        x_aug = matrix("x", D + 2) if fresh is None else self.L_inv.new_empty(D + 2, n)
        torch.div(x.T, self.lengthscale[:, None], out=x_aug[:D]).sub_(self.centre[:, None])
        x_aug[D] = 1.0
        torch.sum(x_aug[:D].square(), 0, out=x_aug[D + 1]).mul_(-0.5)
        K = matrix("K", p + 1)
        torch.mm(self.B_aug, x_aug, out=K[:p])
        H = matrix("H", p) if differs and (slope or keep) else None
        self.prior.values(K[:p], self.outputscale, H)
        w = None
        if whiten or keep:
            w = matrix("w", p + 1)
            torch.mm(self.L_inv, K[:p], out=w[:p])
        found = _Features(x_aug, K, H if differs else K[:p], w)
        if keep:
            self._kept[chunk.rows.start] = found
        return found


@dataclass(frozen=True)
class _Features:
    """A chunk, mapped: the last row of K and of w is free for the vector that the way back appends."""

    x_aug: Tensor  # [D + 2, n]: scaled and centred x, 1, -|x|^2 / 2
    K: Tensor  # [p + 1, n]
    H: Tensor | None  # [p, n]
    w: Tensor | None  # [p + 1, n]


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

    def _zeros(self, *shape: int) -> Tensor:
        return self.space.L_inv.new_zeros(shape)

    def _residual(self, chunk: EntryChunk) -> Tensor:
        y = chunk.y
        return y - self.space.mean if self.space.mean else y

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
        space, p, D = self.space, self.space.p, self.space.D
        n = row.numel()
        sym, K_bar = G + G.T, space.buffer("K_bar", p, n)
        if space.explicit:
            left = torch.cat([space.L_inv.T @ sym @ space.L_inv, (space.L_inv.T @ g).unsqueeze(-1)], dim=-1)
            found.K[p] = row
            torch.mm(left, found.K, out=K_bar)
        else:
            assert found.w is not None  # noqa: S101 the whitened form asks for w
            found.w[p] = row
            w_bar = space.buffer("w_bar", p, n)
            torch.mm(torch.cat([sym, g.unsqueeze(-1)], dim=-1), found.w, out=w_bar)
            torch.mm(space.L_inv.T, w_bar, out=K_bar)
        v = chunk.weights
        if v is not None:
            K_bar.mul_(v)
        d_scale = None
        if space.prior.slope_differs:
            d_scale = (K_bar * found.K[:p]).sum()
        assert found.H is not None  # noqa: S101 the way back asks for it
        E = K_bar.mul_(found.H)
        x = found.x_aug[:D]
        to_b = E @ found.x_aug[: D + 1].T  # [p, D + 1]: E x, E 1
        to_x = space.b_ones @ E  # [D + 1, n]: (E' b)', (E' 1)'
        db = to_b[:, :D] - to_b[:, D:] * space.b  # scaled
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

    def __call__(self, chunk: EntryChunk, x: Tensor) -> GaussianStatistics:
        """The statistics of a chunk."""
        p, r, v = self.space.p, self._residual(chunk), chunk.weights
        w = self.space.features(chunk, x).w
        assert w is not None  # noqa: S101
        w = w[:p]
        root = w if v is None else w * v.sqrt()
        vr = r if v is None else v * r
        n = r.new_tensor(float(r.numel()))
        weight = n if v is None else v.sum()
        return GaussianStatistics(_gram(root), w @ vr, vr @ r, self.space.outputscale * weight, weight, n)

    def pull(
        self, chunk: EntryChunk, x: Tensor, cotangents: Sequence[Tensor], wanted: Sequence[bool], wants_x: bool
    ) -> tuple[list[Tensor | None], Tensor | None]:
        """The analytic gradient of a chunk's share."""
        G, g, g2, g3, *_ = cotangents
        found = self.space.features(chunk, x, slope=True, whiten=not self.space.explicit)
        r, v, p = self._residual(chunk), chunk.weights, self.space.p

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

    def _argument(self, chunk: EntryChunk, features: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The signs s and arguments t = s (mu + eta' w) of a chunk."""
        s = 2.0 * chunk.y - 1.0
        f = weights @ features
        return s, s * (f + self.space.mean if self.space.mean else f)

    def __call__(self, chunk: EntryChunk, x: Tensor) -> ProbitStatistics:
        """The statistics of a chunk."""
        v, w = chunk.weights, self.space.features(chunk, x).w
        assert w is not None  # noqa: S101
        w = w[: self.space.p]
        s, t = self._argument(chunk, w, self.eta)
        slope, value = s * rho(t), log_Phi(t)
        root = w if v is None else w * v.sqrt()
        n = t.new_tensor(float(t.numel()))
        if v is None:
            return ProbitStatistics(_gram(root), value.sum(), w @ slope, self.space.outputscale * n, n, n)
        weight = v.sum()
        return ProbitStatistics(_gram(root), v @ value, w @ (v * slope), self.space.outputscale * weight, weight, n)

    def pull(
        self, chunk: EntryChunk, x: Tensor, cotangents: Sequence[Tensor], wanted: Sequence[bool], wants_x: bool
    ) -> tuple[list[Tensor | None], Tensor | None]:
        """The analytic gradient of a chunk's share."""
        G, g_log, _, g3, *_ = cotangents
        found = self.space.features(chunk, x, slope=True, whiten=not self.space.explicit)
        p = self.space.p
        if found.w is None:
            s, t = self._argument(chunk, found.K[:p], self.lam)
        else:
            s, t = self._argument(chunk, found.w[:p], self.eta)
        slope = s * rho(t)
        v = chunk.weights

        def mean() -> Tensor:
            return g_log * (slope if v is None else v * slope).sum()

        return self._pull(chunk, found, G, g_log * self.eta, slope, float(g3), mean, wants_x)


class FusedCurvatureMap(FusedProbitMap):
    """A chunk to :class:`CurvatureStatistics` at a given eta `[p]`."""

    def zeros(self) -> CurvatureStatistics:  # type: ignore[override]
        """The statistics of no entries."""
        return CurvatureStatistics(self._zeros(), self._zeros(self.space.p), self._zeros(self.space.p, self.space.p))

    def __call__(self, chunk: EntryChunk, x: Tensor) -> CurvatureStatistics:  # type: ignore[override]
        """The statistics of a chunk."""
        v, w = chunk.weights, self.space.features(chunk, x).w
        assert w is not None  # noqa: S101
        w = w[: self.space.p]
        s, t = self._argument(chunk, w, self.eta)
        slope, h = slope_and_curvature(t)
        slope, value = s * slope, log_Phi(t)
        if v is not None:
            slope, value, h = v * slope, v * value, v * h
        root = torch.mul(w, h.sqrt(), out=self.space.buffer("root", *w.shape))
        return CurvatureStatistics(value.sum(), w @ slope, _gram(root))
