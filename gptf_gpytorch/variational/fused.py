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

    def _argument(self, chunk: EntryChunk, found: Features) -> tuple[Tensor, Tensor]:
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
