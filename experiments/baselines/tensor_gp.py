r"""The tensor-variate Gaussian process of InfTucker, on the cells of a grid.

.. math:: \mathrm{vec}(\mathcal M) \sim N(m 1, K_1 \otimes \cdots \otimes K_K), \quad K_k = k(U^{(k)}, U^{(k)})

The eigendecompositions of the K small matrices give everything about the large one. Labels have a probit link, by the
mean-field variational bound of the augmented model, q(z) q(M) with truncated normal z: that of InfTucker's own paper,
and of Theorem 2 with every cell as an inducing point. It is a lower bound of the log evidence.
"""

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import gpytorch
import torch
from torch import Tensor

from gptf_gpytorch.likelihoods import log_Phi, rho

KERNELS = ("rbf", "ard", "matern")
# A direction whose variance is below this share of the noise's has none.
_NEGLIGIBLE = 1e-8
# Cells whose labels are looked at together, so that what is computed of them stays in the cache.
_CELLS = 1 << 15


def along(matrices: Sequence[Tensor | None], grid: Tensor) -> Tensor:
    r"""The product of a grid `[d_1, ..., d_K]` with a matrix along every mode: :math:`(\otimes_k A_k) \mathrm{vec}(Y)`.

    None stands for the identity.
    """
    for mode, matrix in enumerate(matrices):
        if matrix is None:
            continue
        grid = torch.tensordot(matrix, grid, dims=([1], [mode])).movedim(0, mode)
    return grid


def outer(vectors: Sequence[Tensor]) -> Tensor:
    """The products of all combinations of K vectors' elements `[d_1, ..., d_K]`."""
    return reduce(lambda left, right: left[..., None] * right, vectors)


class KroneckerCovariance:
    r""":math:`C = K_1 \otimes \cdots \otimes K_K + \sigma^2 I`, with :math:`K_k = Q_k \Lambda_k Q_k'`.

    Smooth kernels have few eigenvalues that matter beside the noise, even where they meet the largest ones of other modes. Only
    these are kept, `q_k` of a mode: what is orthogonal to their eigenvectors has the variance :math:`\sigma^2`, and products
    with a grid cost the less for it.

    :param kernels: the matrices of the modes `[d_k, d_k]`.
    :param noise: the variance that is added to every cell.
    """

    def __init__(self, kernels: Sequence[Tensor], noise: Tensor) -> None:
        pairs = [torch.linalg.eigh(K.detach()) for K in kernels]
        largest = torch.stack([values[-1] for values, _ in pairs])
        kept = [
            values * largest.prod() / top > _NEGLIGIBLE * noise for (values, _), top in zip(pairs, largest, strict=True)
        ]
        self.values = [values[keep] for (values, _), keep in zip(pairs, kept, strict=True)]
        self.Q = [vectors[:, keep] for (_, vectors), keep in zip(pairs, kept, strict=True)]  # [d_k, q_k]
        self.noise = noise.detach()
        self.spectrum = outer(self.values) + self.noise  # [q_1, ..., q_K]
        self.orthogonal = math.prod(len(K) for K in kernels) - self.spectrum.numel()

    def solve(self, Y: Tensor) -> Tensor:
        r""":math:`C^{-1} \mathrm{vec}(Y)`, as a grid: :math:`(Y + Q (\sigma^2 / S - 1) Q' Y) / \sigma^2`."""
        inside = along([Q.T for Q in self.Q], Y).mul_(self.noise / self.spectrum - 1.0)
        return along(self.Q, inside).add_(Y).div_(self.noise)

    def log_det(self) -> Tensor:
        return self.spectrum.log().sum() + self.orthogonal * self.noise.log()

    def trace_of_inverse(self) -> Tensor:
        return self.spectrum.reciprocal().sum() + self.orthogonal / self.noise

    def gradients(self, alpha: Tensor) -> list[Tensor]:
        r"""The gradient of :math:`-\frac12 y' C^{-1} y - \frac12 \log|C|` by each :math:`K_k`, with alpha = C^-1 y.

        .. math:: \tfrac12 \bigl(\tilde A_{(k)} \Lambda_{-k} \tilde A_{(k)}' -
            \tilde Q_k\, \mathrm{diag}(\textstyle\sum_{-k} \Lambda_{-k} / S)\, \tilde Q_k'\bigr)

        with alpha in the eigenvectors' coordinates of all modes but k, and all eigenvectors of mode k, those that are not kept
        included. No eigenvector is differentiated, so equal eigenvalues do no harm.
        """
        found = []
        for mode, Q in enumerate(self.Q):
            rest = outer([v for k, v in enumerate(self.values) if k != mode]).flatten()  # [product of the others' q]
            matrices = [None if k == mode else other.T for k, other in enumerate(self.Q)]
            A = along(matrices, alpha).movedim(mode, 0).flatten(1)  # [d_k, that product]
            outside = rest.sum() / self.noise
            trace = (rest / self.spectrum.movedim(mode, 0).flatten(1)).sum(1)
            within = (Q * (trace - outside)) @ Q.T
            found.append(0.5 * ((A * rest) @ A.T - within - outside * torch.eye(len(Q), dtype=Q.dtype)))
        return found


class _Attached(torch.autograd.Function):
    """A bound that was computed without autograd, with its gradient by the kernels, the noise and the mean."""

    @staticmethod
    def forward(
        ctx: Any, bound: Tensor, C: KroneckerCovariance, alpha: Tensor, noise: Tensor, mean: Tensor, *kernels: Tensor
    ) -> Tensor:
        ctx.C, ctx.alpha = C, alpha
        return bound.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        C, alpha = ctx.C, ctx.alpha
        noise = 0.5 * (alpha.square().sum() - C.trace_of_inverse())
        kernels = (gradient * part for part in C.gradients(alpha))
        return (None, None, None, gradient * noise, gradient * alpha.sum(), *kernels)


def log_evidence(Y: Tensor, kernels: Sequence[Tensor], noise: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`\log N(\mathrm{vec}(Y) \mid m 1, C)` and :math:`C^{-1} (\mathrm{vec}(Y) - m 1)`."""
    with torch.no_grad():
        C = KroneckerCovariance(kernels, noise)
        centred = Y - mean
        alpha = C.solve(centred)
        bound = -0.5 * (centred * alpha).sum() - 0.5 * C.log_det() - 0.5 * Y.numel() * math.log(2.0 * math.pi)
    return _Attached.apply(bound, C, alpha, noise, mean, *kernels), alpha  # type: ignore[no-untyped-call]


def probit_bound(
    signs: Tensor, kernels: Sequence[Tensor], mean: Tensor, z: Tensor | None, passes: int
) -> tuple[Tensor, Tensor, Tensor]:
    r"""The variational bound of labels with signs `[d_1, ..., d_K]` in {-1, 1}, alpha, and z for the next evaluation.

    .. math:: \sum_i \log \Phi(s_i (m + \mu_i)) - \tfrac12 \mu' K^{-1} \mu - \tfrac12 \log |I + K|

    A pass is :math:`\alpha = (K + I)^{-1} (z - m)`, :math:`\mu = K \alpha = z - m - \alpha`, and then z becomes its mean
    :math:`m + \mu + s \rho(s (m + \mu))`. Each can only raise the bound, which is one after any number of them; the
    gradient is that at fixed z.

    :param z: the augmented variables' means to begin with, or None for those at :math:`\mu = 0`.
    """
    one = torch.ones_like(mean)
    with torch.no_grad():
        C = KroneckerCovariance(kernels, one)
        z = mean + signs * rho(signs * mean) if z is None else z
        for _ in range(passes):
            alpha = C.solve(z - mean)
            f = z - alpha
            z = torch.cat([part + s * rho(s * part) for part, s in _parts(f, signs)]).view_as(f)
        fit = torch.stack([log_Phi(s * part).sum() for part, s in _parts(f, signs)]).sum()
        bound = fit - 0.5 * ((f - mean) * alpha).sum() - 0.5 * C.log_det()
    return _Attached.apply(bound, C, alpha, one, mean, *kernels), alpha, z  # type: ignore[no-untyped-call]


def _parts(*grids: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """A few cells of grids at a time."""
    return zip(*(grid.reshape(-1).split(_CELLS) for grid in grids), strict=True)


class TensorGP(torch.nn.Module):
    """Latent factors, a kernel for each mode, and the bound of any sub-tensor of their grid.

    :param factors: where the factors start `[d_k, r_k]`.
    :param kernel: ``rbf``, ``ard`` (a lengthscale for each factor) or ``matern`` (5/2).
    :param typical: a (sub-)tensor, from which mean, scale and noise start.
    :param lengthscale: where the kernels' start.
    """

    def __init__(
        self, factors: Sequence[Tensor], kernel: str, typical: Tensor, binary: bool, lengthscale: float = 1.0
    ) -> None:
        super().__init__()
        self.binary = binary
        self.factors = torch.nn.ParameterList(torch.nn.Parameter(table.clone()) for table in factors)
        self.kernels = torch.nn.ModuleList(_kernel(kernel, table.size(1), lengthscale) for table in factors)
        rate = typical.mean()
        mean = torch.special.ndtri(rate.clamp(1e-6, 0.5)) if binary else rate
        variance = 1.0 if binary else float(typical.var().clamp_min(1e-12))
        self.mean = torch.nn.Parameter(mean)
        self.log_scale = torch.nn.Parameter(torch.tensor(math.log(variance), dtype=torch.float64))
        self.log_noise = torch.nn.Parameter(torch.tensor(math.log(0.5 * variance), dtype=torch.float64))

    def tables(self, rows: Sequence[Tensor] | None = None) -> list[Tensor]:
        """The factors of all entities, or of some rows of each mode."""
        if rows is None:
            return list(self.factors)
        return [table[at] for table, at in zip(self.factors, rows, strict=True)]

    def covariances(self, left: Sequence[Tensor], right: Sequence[Tensor] | None = None) -> list[Tensor]:
        """The kernel matrix of each mode between rows of factors; the first one carries the scale."""
        pairs = zip(self.kernels, left, left if right is None else right, strict=True)
        found = [kernel(a, b).to_dense() for kernel, a, b in pairs]
        return [found[0] * self.log_scale.exp(), *found[1:]]

    def bound(
        self, Y: Tensor, tables: Sequence[Tensor], z: Tensor | None, passes: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The log evidence of values, or the bound of labels; the posterior mean's weights alpha; the labels' z."""
        kernels = self.covariances(tables)
        if self.binary:
            return probit_bound(2.0 * Y - 1.0, kernels, self.mean, z, passes)
        return *log_evidence(Y, kernels, self.log_noise.exp(), self.mean), None


def _kernel(name: str, rank: int, lengthscale: float) -> gpytorch.kernels.Kernel:
    kernel = {
        "rbf": lambda: gpytorch.kernels.RBFKernel(),
        "ard": lambda: gpytorch.kernels.RBFKernel(ard_num_dims=rank),
        "matern": lambda: gpytorch.kernels.MaternKernel(nu=2.5),
    }[name]()
    kernel.lengthscale = lengthscale
    return kernel.double()
