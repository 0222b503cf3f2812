"""The map: a chunk of entries to additive statistics. Every sum over entries in the package is here."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gptf_gpytorch.likelihoods import log_Phi, rho
from gptf_gpytorch.variational.shards import EntryChunk, Offset, one_by_one


class GaussianStatistics(NamedTuple):
    r"""What Theorem 1 needs of the entries, in whitened form: :math:`w_j = L^{-1} k_j`, :math:`L L' = K_{BB}`."""

    W: Tensor  # [..., p, p]  sum v_j w_j w_j'  =  L^-1 A1 L^-T
    c: Tensor  # [..., p]     sum v_j w_j (y_j - mu_j)  =  L^-1 a4
    a2: Tensor  # [...]       sum v_j (y_j - mu_j)^2
    a3: Tensor  # [...]       sum v_j k(x_j, x_j), and the variance of the biases
    n: Tensor  # [...]        sum v_j
    entries: Tensor  # []     the number of entries


class ProbitStatistics(NamedTuple):
    """What Theorem 2 needs of the entries at a given eta = L' lambda."""

    W: Tensor  # [..., p, p]  sum v_j w_j w_j'
    log_Phi: Tensor  # [...]  sum v_j log Phi(t_j),  t_j = s_j (mu_j + eta' w_j),  s_j = 2 y_j - 1
    a5: Tensor  # [..., p]    sum v_j w_j s_j rho(t_j)
    a3: Tensor  # [...]       sum v_j k(x_j, x_j), and the variance of the biases
    n: Tensor  # [...]        sum v_j
    entries: Tensor  # []     the number of entries


class CurvatureStatistics(NamedTuple):
    """What one step of the solver for lambda needs, t_j = s_j (mu_j + eta' w_j)."""

    log_Phi: Tensor  # [...]  sum v_j log Phi(t_j)
    a5: Tensor  # [..., p]    sum v_j w_j s_j rho(t_j)
    H: Tensor  # [..., p, p]  sum v_j h_j w_j w_j',  h_j = rho(t_j) (rho(t_j) + t_j)


class GenericMap:
    """A map for any GPyTorch model: the prior comes from its ``forward``, the way back from autograd.

    The whitening factor L counts as a constant here; :func:`~gptf_gpytorch.variational.bounds.through_kernel` puts its
    gradient back from the sums alone.

    :param model: the model.
    :param L: the Cholesky factor of K_BB `[..., p, p]`.
    :param batch_shape: that of the sums.
    :param leaves: the parameters that ``forward`` uses.
    """

    threaded = False

    def __init__(
        self, model: Any, inducing_points: Tensor, L: Tensor, batch_shape: torch.Size, leaves: Sequence[Tensor]
    ) -> None:
        self.model, self.inducing_points, self.L = model, inducing_points, L
        self.batch_shape, self.leaves = batch_shape, leaves

    def statistics(self, chunk: EntryChunk, x: Tensor, offset: Offset | None) -> tuple[Tensor, ...]:
        """The statistics of a chunk, with a graph."""
        raise NotImplementedError

    def zeros(self) -> tuple[Tensor, ...]:
        """The statistics of no entries."""
        raise NotImplementedError

    def total(self, chunks: Sequence[EntryChunk]) -> tuple[Tensor, ...]:
        """The statistics of some chunks."""
        sums = self.zeros()
        for chunk in one_by_one(chunks):
            for accumulated, share in zip(sums, self.statistics(chunk, chunk.gather(), chunk.offset), strict=True):
                accumulated.add_(share)
        return sums

    def pull(
        self,
        chunks: Sequence[EntryChunk],
        cotangents: Sequence[Tensor],
        wanted: Sequence[bool],
        tables: Sequence[Tensor | None],
    ) -> list[Tensor | None]:
        """Map each chunk again with a graph, and differentiate the inner product with the cotangents."""
        gradients = [torch.zeros_like(leaf) if want else None for leaf, want in zip(self.leaves, wanted, strict=True)]
        accumulators = [gradient for gradient in gradients if gradient is not None]
        sources = [leaf for leaf, want in zip(self.leaves, wanted, strict=True) if want]
        wants_x = any(table is not None for table in tables)
        for chunk in one_by_one(chunks):
            with torch.enable_grad():
                inputs = [part.detach().requires_grad_(wants_x) for part in (chunk.gather(), *(chunk.offset or ()))]
                x, *offset = inputs
                shares = self.statistics(chunk, x, (offset[0], offset[1]) if offset else None)
                # A share may lack batch dimensions that the sums have, so the product broadcasts.
                pairs = [(s * c).sum() for s, c in zip(shares, cotangents, strict=True) if s.requires_grad]
                inner = torch.stack(pairs).sum()
            found = torch.autograd.grad(inner, [*sources, *(inputs if wants_x else ())], allow_unused=True)
            for accumulated, share in zip(accumulators, found, strict=False):
                if share is not None:
                    accumulated.add_(share)
            if wants_x:
                dx, *d_offset = found[len(sources) :]
                if dx is not None:
                    chunk.scatter_(tables, dx)
                if d_offset:
                    chunk.scatter_offset_(tables, *d_offset)
        return gradients

    def _zeros(self, *shape: int) -> Tensor:
        return self.L.new_zeros((*self.batch_shape, *shape))

    @property
    def p(self) -> int:
        """The number of inducing points."""
        return self.L.size(-1)

    def _prior(self, x: Tensor, offset: Offset | None) -> tuple[Tensor, Tensor, Tensor]:
        """The whitened features w `[..., p, n]`, k(x_j, x_j) `[..., n]` and the mean mu `[..., n]`, both with biases."""
        batch = torch.broadcast_shapes(self.inducing_points.shape[:-2], x.shape[:-2])
        B = self.inducing_points.expand(*batch, *self.inducing_points.shape[-2:])
        joint = self.model.forward(torch.cat([B, x.expand(*batch, *x.shape[-2:])], dim=-2))
        covariance = joint.lazy_covariance_matrix
        K_BX = covariance[..., : self.p, self.p :].to_dense()  # [..., p, n]
        k = covariance[..., self.p :, self.p :].diagonal(dim1=-1, dim2=-2)  # [..., n]
        mu = joint.mean[..., self.p :]
        if offset is not None:
            mu, k = mu + offset[0], k + offset[1]
        return torch.linalg.solve_triangular(self.L, K_BX, upper=False), k, mu


class GaussianMap(GenericMap):
    """A chunk to :class:`GaussianStatistics`."""

    def zeros(self) -> GaussianStatistics:
        """The statistics of no entries."""
        p, zero = self.p, self._zeros
        return GaussianStatistics(zero(p, p), zero(p), zero(), zero(), zero(), zero().sum())

    def statistics(self, chunk: EntryChunk, x: Tensor, offset: Offset | None) -> GaussianStatistics:
        """The statistics of a chunk."""
        w, k, mu = self._prior(x, offset)
        v, r = chunk.v, chunk.y - mu
        vw = w * v.unsqueeze(-2)
        return GaussianStatistics(
            W=vw @ w.mT,
            c=(vw @ r.unsqueeze(-1)).squeeze(-1),
            a2=(v * r.square()).sum(-1),
            a3=(v * k).sum(-1),
            n=v.sum(-1),
            entries=v.new_tensor(v.size(-1)),
        )


class ProbitMap(GenericMap):
    """A chunk to :class:`ProbitStatistics` at a given eta `[..., p]`, which gets no gradient."""

    def __init__(self, *where: Any, eta: Tensor) -> None:
        super().__init__(*where)
        self.eta = eta

    def zeros(self) -> ProbitStatistics:
        """The statistics of no entries."""
        p, zero = self.p, self._zeros
        return ProbitStatistics(zero(p, p), zero(), zero(p), zero(), zero(), zero().sum())

    def statistics(self, chunk: EntryChunk, x: Tensor, offset: Offset | None) -> ProbitStatistics:
        """The statistics of a chunk."""
        w, k, mu = self._prior(x, offset)
        v, s = chunk.v, 2.0 * chunk.y - 1.0
        t = s * (mu + (w.mT @ self.eta.unsqueeze(-1)).squeeze(-1))
        return ProbitStatistics(
            W=(w * v.unsqueeze(-2)) @ w.mT,
            log_Phi=(v * log_Phi(t)).sum(-1),
            a5=(w @ (v * s * rho(t)).unsqueeze(-1)).squeeze(-1).detach(),
            a3=(v * k).sum(-1),
            n=v.sum(-1),
            entries=v.new_tensor(v.size(-1)),
        )


class CurvatureMap(GenericMap):
    """A chunk to :class:`CurvatureStatistics` at a given eta `[..., p]`."""

    def __init__(self, *where: Any, eta: Tensor) -> None:
        super().__init__(*where)
        self.eta = eta

    def zeros(self) -> CurvatureStatistics:
        """The statistics of no entries."""
        return CurvatureStatistics(self._zeros(), self._zeros(self.p), self._zeros(self.p, self.p))

    def statistics(self, chunk: EntryChunk, x: Tensor, offset: Offset | None) -> CurvatureStatistics:
        """The statistics of a chunk."""
        w, _, mu = self._prior(x, offset)
        v, s = chunk.v, 2.0 * chunk.y - 1.0
        t = s * (mu + (w.mT @ self.eta.unsqueeze(-1)).squeeze(-1))
        slope, h = slope_and_curvature(t)
        return CurvatureStatistics(
            log_Phi=(v * log_Phi(t)).sum(-1),
            a5=(w @ (v * s * slope).unsqueeze(-1)).squeeze(-1),
            H=(w * (v * h).unsqueeze(-2)) @ w.mT,
        )


def slope_and_curvature(t: Tensor) -> tuple[Tensor, Tensor]:
    """rho(t), and h = rho (rho + t), minus the second derivative of log Phi, which lies in (0, 1)."""
    slope = rho(t)
    # For t far below 0 the sum rho + t cancels to about 1 / |t|.
    return slope, (slope * (slope + t)).clamp(0.0, 1.0)
