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

import torch
from torch import Tensor

from gptf_gpytorch.variational.shards import EntryChunk
from gptf_gpytorch.variational.statistics import (
    CurvatureStatistics,
    GaussianStatistics,
    ProbitStatistics,
)
from gptf_gpytorch.variational.workspace import Workspace


class FusedMap:
    """What the fused maps share."""

    threaded = True

    def __init__(self, workspace: Workspace) -> None:
        self.space = workspace
        self.leaves = workspace.prior.leaves

    def zeros(self) -> tuple[Tensor, ...]:
        """The statistics of no entries."""
        raise NotImplementedError

    def share(self, piece: EntryChunk) -> tuple[Tensor, ...]:
        """The statistics of a piece."""
        raise NotImplementedError

    def total(self, chunks: Sequence[EntryChunk]) -> tuple[Tensor, ...]:
        """The statistics of some chunks."""
        sums = self.zeros()
        for piece in self.space.runs(chunks):
            for accumulated, found in zip(sums, self.share(piece), strict=True):
                accumulated.add_(found)
        return sums

    def _zeros(self, *shape: int) -> Tensor:
        return self.space.L_inv.new_zeros(shape)

    def _variance(self, piece: EntryChunk, weight: Tensor) -> Tensor:
        """A piece's share of a3."""
        kernel, v = self.space.outputscale * weight, piece.weights
        if piece.offset is None:
            return kernel
        return kernel + (piece.offset[1] if v is None else v * piece.offset[1]).sum()

    def _pull(
        self,
        chunks: Sequence[EntryChunk],
        G: Tensor,
        g: Tensor,
        row: Callable[[EntryChunk], Tensor],
        trace: float,
        tables: Sequence[Tensor | None],
        mean: Callable[[Tensor, Tensor | None], Tensor],
        *,
        through_w: bool,
    ) -> list[Tensor | None]:
        """The way back, given that the gradient of w is v * ((G + G') w + g row').

        :param trace: the gradient of a3.
        :param mean: the gradient of an entry's mean, but for its weight: from the row and, if asked for, g' w.
        :param through_w: whether it asks for g' w.
        """
        space, D, L_inv = self.space, self.space.D, self.space.L_inv
        left, column = G + G.T, L_inv.T @ g
        if space.explicit:
            left = L_inv.T @ left @ L_inv
        db, d_lengthscale = self._zeros(space.p, D), self._zeros(D)
        d_scale, d_mean, weight = self._zeros(), self._zeros(), 0.0
        has_mean = space.prior.mean is not None
        for piece in space.runs(chunks):
            rows, v, offset = row(piece), piece.weights, piece.offset
            wants_mean = has_mean or offset is not None
            found = space.back(piece, left, column, rows, tables, along=through_w and wants_mean)
            db += found.to_b[:, :D] - found.to_b[:, D : D + 1] * space.b  # scaled
            d_lengthscale -= found.dx_x
            d_scale += found.d_scale
            weight += float(rows.numel()) if v is None else float(v.sum())
            if wants_mean:
                d_mu = mean(rows, found.along) if v is None else v * mean(rows, found.along)
                d_mean += d_mu.sum()
                if offset is not None:
                    piece.scatter_offset_(tables, d_mu, torch.full_like(d_mu, trace) if v is None else trace * v)
        d_lengthscale = (d_lengthscale - (db * space.b).sum(0)) / space.lengthscale
        if space.prior.lengthscale.numel() == 1:
            d_lengthscale = d_lengthscale.sum(0, keepdim=True)
        leaves = [db / space.lengthscale, d_lengthscale, d_scale / space.outputscale + trace * weight]
        return [*leaves, d_mean] if has_mean else [*leaves]


class FusedGaussianMap(FusedMap):
    """Entries to :class:`GaussianStatistics`."""

    def zeros(self) -> GaussianStatistics:
        """The statistics of no entries."""
        p, zero = self.space.p, self._zeros
        return GaussianStatistics(zero(p, p), zero(p), zero(), zero(), zero(), zero())

    def share(self, piece: EntryChunk) -> GaussianStatistics:
        """The statistics of a piece."""
        v, r = piece.weights, self._residual(piece)
        W, c = self.space.moments(piece, r)
        n = r.new_tensor(float(r.numel()))
        weight = n if v is None else v.sum()
        return GaussianStatistics(W, c, r @ (r if v is None else v * r), self._variance(piece, weight), weight, n)

    def pull(
        self,
        chunks: Sequence[EntryChunk],
        cotangents: Sequence[Tensor],
        wanted: Sequence[bool],
        tables: Sequence[Tensor | None],
    ) -> list[Tensor | None]:
        """The analytic gradient."""
        G, g, g2, g3, *_ = cotangents

        def mean(r: Tensor, along: Tensor | None) -> Tensor:
            assert along is not None  # noqa: S101 it was asked for
            return -(along + 2.0 * g2 * r)

        return self._pull(chunks, G, g, self._residual, float(g3), tables, mean, through_w=True)

    def _residual(self, piece: EntryChunk) -> Tensor:
        r = piece.y - self.space.mean
        return r if piece.offset is None else r - piece.offset[0]


class FusedProbitMap(FusedMap):
    """Entries to :class:`ProbitStatistics` at a given eta `[p]`, which gets no gradient.

    :param entries: how many there are; of each, s rho(t) is kept for the way back.
    """

    def __init__(self, workspace: Workspace, eta: Tensor, entries: int) -> None:
        super().__init__(workspace)
        self.eta, self._slope = eta, self._zeros(entries)

    def zeros(self) -> ProbitStatistics:
        """The statistics of no entries."""
        p, zero = self.space.p, self._zeros
        return ProbitStatistics(zero(p, p), zero(), zero(p), zero(), zero(), zero())

    def share(self, piece: EntryChunk) -> ProbitStatistics:
        """The statistics of a piece."""
        v, found = piece.weights, self.space.probit(piece, self.eta, curved=False)
        self._slope[piece.rows] = found.slope
        n = found.slope.new_tensor(float(found.slope.numel()))
        weight = n if v is None else v.sum()
        return ProbitStatistics(found.W, found.log_Phi, found.a5, self._variance(piece, weight), weight, n)

    def pull(
        self,
        chunks: Sequence[EntryChunk],
        cotangents: Sequence[Tensor],
        wanted: Sequence[bool],
        tables: Sequence[Tensor | None],
    ) -> list[Tensor | None]:
        """The analytic gradient."""
        G, g_log, _, g3, *_ = cotangents

        def row(piece: EntryChunk) -> Tensor:
            return self._slope[piece.rows]

        def mean(slope: Tensor, _: Tensor | None) -> Tensor:
            return g_log * slope

        return self._pull(chunks, G, g_log * self.eta, row, float(g3), tables, mean, through_w=False)


class FusedCurvatureMap(FusedMap):
    """Entries to :class:`CurvatureStatistics` at a given eta `[p]`."""

    def __init__(self, workspace: Workspace, eta: Tensor) -> None:
        super().__init__(workspace)
        self.eta = eta

    def zeros(self) -> CurvatureStatistics:
        """The statistics of no entries."""
        return CurvatureStatistics(self._zeros(), self._zeros(self.space.p), self._zeros(self.space.p, self.space.p))

    def share(self, piece: EntryChunk) -> CurvatureStatistics:
        """The statistics of a piece."""
        found = self.space.probit(piece, self.eta, curved=True)
        return CurvatureStatistics(found.log_Phi, found.a5, found.W)
