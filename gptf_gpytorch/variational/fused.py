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

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.likelihoods import log_Phi, rho
from gptf_gpytorch.variational.statistics import (
    CurvatureStatistics,
    EntryChunk,
    GaussianStatistics,
    ProbitStatistics,
    slope_and_curvature,
)
from gptf_gpytorch.variational.workspace import Features, Workspace


class FusedMap:
    """What the fused maps share."""

    threaded = True

    def __init__(self, workspace: Workspace) -> None:
        self.space = workspace
        self.leaves = workspace.prior.leaves
        self._left_of: tuple[Tensor, Tensor, Tensor] | None = None

    def _zeros(self, *shape: int) -> Tensor:
        return self.space.L_inv.new_zeros(shape)

    def _gram(self, w: Tensor, weights: Tensor | None) -> Tensor:
        """The sum of v w w', at half the price where the BLAS within reach has a symmetric product."""
        if weights is not None:
            w = torch.mul(w, weights.sqrt(), out=self.space.buffer("root", *w.shape))
        if w.device.type == "cpu":
            array = w.numpy()
            return torch.from_numpy(np.matmul(array, array.T))
        return w @ w.T

    def _left(self, G: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """G + G' and g or, in the explicit form, S and L^-T g; the same for all chunks of a way back."""
        if self._left_of is None or self._left_of[0] is not G:
            L_inv, left, column = self.space.L_inv, G + G.T, g
            if self.space.explicit:
                left, column = L_inv.T @ left @ L_inv, L_inv.T @ g
            self._left_of = (G, left, column)
        return self._left_of[1:]

    def _pull(
        self,
        chunk: EntryChunk,
        found: Features,
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
        space, D, v = self.space, self.space.D, chunk.weights
        pulled = space.back(found, *self._left(G, g), row, v)
        db = pulled.to_b[:, :D] - pulled.to_b[:, D : D + 1] * space.b  # scaled
        d_lengthscale = -(pulled.dx_x + (db * space.b).sum(0)) / space.lengthscale
        if space.prior.lengthscale.numel() == 1:
            d_lengthscale = d_lengthscale.sum(0, keepdim=True)
        count = float(row.numel()) if v is None else float(v.sum())
        leaves: list[Tensor | None] = [
            db / space.lengthscale,
            d_lengthscale,
            pulled.d_scale / space.outputscale + trace * count,
        ]
        if space.prior.mean is not None:
            leaves.append(mean())
        return leaves, pulled.dx if wants_x else None


class FusedGaussianMap(FusedMap):
    """A chunk to :class:`GaussianStatistics`."""

    def zeros(self) -> GaussianStatistics:
        """The statistics of no entries."""
        p, zero = self.space.p, self._zeros
        return GaussianStatistics(zero(p, p), zero(p), zero(), zero(), zero(), zero())

    def __call__(self, chunk: EntryChunk) -> GaussianStatistics:
        """The statistics of a chunk."""
        v, w, r = chunk.weights, self.space.features(chunk).w, chunk.y - self.space.mean
        assert w is not None  # noqa: S101
        n, vr = r.new_tensor(float(r.numel())), r if v is None else v * r
        weight = n if v is None else v.sum()
        return GaussianStatistics(self._gram(w, v), w @ vr, r @ vr, self.space.outputscale * weight, weight, n)

    def pull(
        self, chunk: EntryChunk, cotangents: Sequence[Tensor], wanted: Sequence[bool], wants_x: bool
    ) -> tuple[list[Tensor | None], Tensor | None]:
        """The analytic gradient of a chunk's share."""
        G, g, g2, g3, *_ = cotangents
        found = self.space.features(chunk, slope=True, whiten=not self.space.explicit)
        r, v = chunk.y - self.space.mean, chunk.weights

        def mean() -> Tensor:
            assert found.K is not None  # noqa: S101 the way back asks for it
            drift = (self.space.L_inv.T @ g) @ found.K + 2.0 * g2 * r
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

    def _argument(self, chunk: EntryChunk, found: Features) -> tuple[Tensor, Tensor]:
        """The signs s and arguments t = s (mu + eta' w) of a chunk."""
        s = 2.0 * chunk.y - 1.0
        if found.w is not None:
            f = self.eta @ found.w
        else:
            assert found.K is not None  # noqa: S101
            f = self.lam @ found.K
        return s, s * (f + self.space.mean)

    def __call__(self, chunk: EntryChunk) -> ProbitStatistics:
        """The statistics of a chunk."""
        v, found = chunk.weights, self.space.features(chunk)
        s, t = self._argument(chunk, found)
        w, slope, value, n = found.w, s * rho(t), log_Phi(t), t.new_tensor(float(t.numel()))
        assert w is not None  # noqa: S101
        weight = n if v is None else v.sum()
        if v is not None:
            slope, value = v * slope, v * value
        W = self._gram(w, v)
        return ProbitStatistics(W, value.sum(), w @ slope, self.space.outputscale * weight, weight, n)

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
        w = found.w
        assert w is not None  # noqa: S101
        slope, h = slope_and_curvature(t)
        slope, value = s * slope, log_Phi(t)
        if v is not None:
            slope, value, h = v * slope, v * value, v * h
        return CurvatureStatistics(value.sum(), w @ slope, self._gram(w, h))
