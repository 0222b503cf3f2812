"""The map: a chunk of entries to additive statistics. Every sum over entries in the package is here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gptf_gpytorch.factors import LatentFactors
from gptf_gpytorch.likelihoods import log_Phi, rho


@dataclass(frozen=True)
class EntryChunk:
    """Consecutive entries of a shard.

    :param inputs: indices `[n, K]` if there are factors, else x `[..., n, D]`.
    :param y: values `[..., n]`.
    :param v: weights `[..., n]`.
    """

    inputs: Tensor
    rows: slice
    y: Tensor
    v: Tensor
    factors: LatentFactors | None

    def gather(self) -> Tensor:
        """X `[..., n, D]`, without a graph."""
        with torch.no_grad():
            return self.inputs.detach() if self.factors is None else self.factors(self.inputs)

    def scatter_(self, gradients: Sequence[Tensor | None], dx: Tensor) -> None:
        """Add the gradient of x where x came from: rows of the factors, or rows of the plain inputs."""
        if self.factors is not None:
            self.factors.scatter_(gradients, self.inputs, dx)
        elif gradients[0] is not None:
            gradients[0][..., self.rows, :].add_(dx)


@dataclass(frozen=True)
class EntryShard:
    """The entries that one worker holds: indices or plain inputs, values, and weights if there are any."""

    inputs: Tensor
    y: Tensor
    v: Tensor | None
    factors: LatentFactors | None
    chunk_size: int

    @property
    def device_and_dtype(self) -> dict[str, Any]:
        """Where, and in which precision, the entries are mapped."""
        source = self.inputs if self.factors is None else self.factors[0]
        return {"device": source.device, "dtype": source.dtype}

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """What x is gathered from, as far as it may need a gradient."""
        if self.factors is not None:
            return tuple(self.factors.weights)
        return (self.inputs,) if self.inputs.requires_grad else ()

    def __len__(self) -> int:
        return self.inputs.size(-2)

    def chunks(self) -> Iterator[EntryChunk]:
        """At most ``chunk_size`` entries at a time, moved to where the model is."""
        where = self.device_and_dtype
        for start in range(0, len(self), self.chunk_size):
            rows = slice(start, min(start + self.chunk_size, len(self)))
            y = self.y[..., rows].to(**where)
            v = torch.ones_like(y) if self.v is None else self.v[..., rows].to(**where)
            yield EntryChunk(self.inputs[..., rows, :].to(where["device"]), rows, y, v, self.factors)


class GaussianStatistics(NamedTuple):
    r"""What Theorem 1 needs of the entries, in whitened form: :math:`w_j = L^{-1} k_j`, :math:`L L' = K_{BB}`."""

    W: Tensor  # [..., p, p]  sum v_j w_j w_j'  =  L^-1 A1 L^-T
    c: Tensor  # [..., p]     sum v_j w_j (y_j - mu_j)  =  L^-1 a4
    a2: Tensor  # [...]       sum v_j (y_j - mu_j)^2
    a3: Tensor  # [...]       sum v_j k(x_j, x_j)
    n: Tensor  # [...]        sum v_j
    entries: Tensor  # []     the number of entries


class ProbitStatistics(NamedTuple):
    """What Theorem 2 needs of the entries at a given eta = L' lambda."""

    W: Tensor  # [..., p, p]  sum v_j w_j w_j'
    log_Phi: Tensor  # [...]  sum v_j log Phi(s_j (mu_j + eta' w_j)),  s_j = 2 y_j - 1
    a3: Tensor  # [...]       sum v_j k(x_j, x_j)
    n: Tensor  # [...]        sum v_j
    entries: Tensor  # []     the number of entries


class CurvatureStatistics(NamedTuple):
    """What one step of the solver for lambda needs, t_j = s_j (mu_j + eta' w_j)."""

    log_Phi: Tensor  # [...]  sum v_j log Phi(t_j)
    a5: Tensor  # [..., p]    sum v_j w_j s_j rho(t_j)
    H: Tensor  # [..., p, p]  sum v_j h_j w_j w_j',  h_j = rho(t_j) (rho(t_j) + t_j)


class _Map:
    """What the maps share: the prior at a chunk, whitened, from any GPyTorch model's ``forward``."""

    def __init__(self, model: Any, inducing_points: Tensor, batch_shape: torch.Size) -> None:
        self.model, self.inducing_points, self.batch_shape = model, inducing_points, batch_shape

    def _zeros(self, *shape: int) -> Tensor:
        return self.inducing_points.new_zeros((*self.batch_shape, *shape))

    @property
    def p(self) -> int:
        return self.inducing_points.size(-2)

    def _prior(self, x: Tensor, L: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The whitened features w `[..., p, n]`, k(x_j, x_j) `[..., n]` and the mean mu `[..., n]`."""
        batch = torch.broadcast_shapes(self.inducing_points.shape[:-2], x.shape[:-2])
        B = self.inducing_points.expand(*batch, *self.inducing_points.shape[-2:])
        joint = self.model.forward(torch.cat([B, x.expand(*batch, *x.shape[-2:])], dim=-2))
        covariance = joint.lazy_covariance_matrix
        K_BX = covariance[..., : self.p, self.p :].to_dense()  # [..., p, n]
        k = covariance[..., self.p :, self.p :].diagonal(dim1=-1, dim2=-2)  # [..., n]
        return torch.linalg.solve_triangular(L, K_BX, upper=False), k, joint.mean[..., self.p :]


class GaussianMap(_Map):
    """A chunk to :class:`GaussianStatistics`."""

    def zeros(self) -> GaussianStatistics:
        """The statistics of no entries."""
        p, zero = self.p, self._zeros
        return GaussianStatistics(zero(p, p), zero(p), zero(), zero(), zero(), zero().sum())

    def __call__(self, chunk: EntryChunk, x: Tensor, L: Tensor) -> GaussianStatistics:
        """The statistics of a chunk."""
        w, k, mu = self._prior(x, L)
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


class ProbitMap(_Map):
    """A chunk to :class:`ProbitStatistics` at a given eta `[..., p]`, which gets no gradient."""

    def __init__(self, model: Any, inducing_points: Tensor, batch_shape: torch.Size, eta: Tensor) -> None:
        super().__init__(model, inducing_points, batch_shape)
        self.eta = eta

    def zeros(self) -> ProbitStatistics:
        """The statistics of no entries."""
        p, zero = self.p, self._zeros
        return ProbitStatistics(zero(p, p), zero(), zero(), zero(), zero().sum())

    def __call__(self, chunk: EntryChunk, x: Tensor, L: Tensor) -> ProbitStatistics:
        """The statistics of a chunk."""
        w, k, mu = self._prior(x, L)
        v, s = chunk.v, 2.0 * chunk.y - 1.0
        f = mu + (w.mT @ self.eta.unsqueeze(-1)).squeeze(-1)
        return ProbitStatistics(
            W=(w * v.unsqueeze(-2)) @ w.mT,
            log_Phi=(v * log_Phi(s * f)).sum(-1),
            a3=(v * k).sum(-1),
            n=v.sum(-1),
            entries=v.new_tensor(v.size(-1)),
        )


class CurvatureMap(ProbitMap):
    """A chunk to :class:`CurvatureStatistics` at a given eta `[..., p]`."""

    def zeros(self) -> CurvatureStatistics:  # type: ignore[override]
        """The statistics of no entries."""
        return CurvatureStatistics(self._zeros(), self._zeros(self.p), self._zeros(self.p, self.p))

    def __call__(self, chunk: EntryChunk, x: Tensor, L: Tensor) -> CurvatureStatistics:  # type: ignore[override]
        """The statistics of a chunk."""
        w, _, mu = self._prior(x, L)
        v, s = chunk.v, 2.0 * chunk.y - 1.0
        t = s * (mu + (w.mT @ self.eta.unsqueeze(-1)).squeeze(-1))
        slope = rho(t)
        # For t far below 0 the sum rho + t cancels to about 1 / |t|; the true value of h lies in (0, 1).
        h = (slope * (slope + t)).clamp(0.0, 1.0)
        return CurvatureStatistics(
            log_Phi=(v * log_Phi(t)).sum(-1),
            a5=(w @ (v * s * slope).unsqueeze(-1)).squeeze(-1),
            H=(w * (v * h).unsqueeze(-2)) @ w.mT,
        )
