"""Theorem 1 and Theorem 2: statistics to a bound, as named terms. Pure functions of p x p algebra."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gptf_gpytorch.distributed.threads import one_core_each
from gptf_gpytorch.errors import CholeskyError
from gptf_gpytorch.variational.statistics import GaussianStatistics, ProbitStatistics


class GaussianBound(NamedTuple):
    r"""The terms of :math:`L_1^*`, each `[...]`, without the factors' prior."""

    log_det: Tensor  # -1/2 log|M|
    trace: Tensor  # -beta/2 (a3 - tr W)
    fit: Tensor  # -beta/2 (a2 - beta |R^-1 c|^2)
    normaliser: Tensor  # n/2 log(beta / 2 pi)


class ProbitBound(NamedTuple):
    r"""The terms of :math:`L_2^*`, each `[...]`, without the factors' prior."""

    log_det: Tensor  # -1/2 log|M|
    trace: Tensor  # -1/2 (a3 - tr W)
    fit: Tensor  # sum v_j log Phi(s_j (mu_j + eta' w_j))
    penalty: Tensor  # -1/2 eta' eta


class WhitenedPosterior(NamedTuple):
    """A q(v) in whitened coordinates, v = mean(B) + L u, q(u) = N(mean, root root')."""

    mean: Tensor  # [..., p]
    root: Tensor  # [..., p, p], lower triangular
    inner: Tensor  # [..., p, p], what `through_kernel` needs of the entries


def theorem_1(statistics: GaussianStatistics, beta: Tensor) -> tuple[GaussianBound, WhitenedPosterior]:
    r"""The collapsed bound for continuous entries with noise precision beta, and the q(v) that attains it.

    With :math:`K_{BB} = L L'` the determinant lemma and a similarity transform turn the paper's form into

    .. math:: \tfrac12 \log|K_{BB}| - \tfrac12 \log|K_{BB} + \beta A_1| = -\tfrac12 \log|I + \beta L^{-1} A_1 L^{-T}|

    and :math:`a_4'(K_{BB} + \beta A_1)^{-1} a_4 = c' M^{-1} c` with :math:`M = I + \beta W`, so that no inverse of
    :math:`K_{BB}`, which is nearly singular at a good start, appears.
    """
    W, c, a2, a3, n, _ = statistics
    scaled_W, scaled_c = beta[..., None, None] * W, beta[..., None] * c
    with torch.no_grad():
        M = identity_plus(scaled_W)
        R = _cholesky(M)  # M = R R'
        Rc = torch.linalg.solve_triangular(R, scaled_c.unsqueeze(-1), upper=False)  # [..., p, 1]
        mean = torch.linalg.solve_triangular(R.mT, Rc, upper=True).squeeze(-1)  # beta M^-1 c
        # Q = (G + G') W + g c' with G = beta/2 (I - M^-1 - m m') and g = beta m; beta W = M - I collapses it to
        # M + M^-1 - 2 I + m m', without the cancellation of its parts.
        posterior = _posterior(mean, M, mean)
        inverse = posterior.root @ posterior.root.mT
        explained = Rc.square().sum((-2, -1))  # beta^2 c' M^-1 c
    bound = GaussianBound(
        log_det=_known(-half_log_det(R), (scaled_W, -0.5 * inverse)),
        trace=-0.5 * beta * (a3 - trace(W)),
        fit=-0.5 * beta * a2
        + 0.5 * _known(explained, (scaled_W, -mean.unsqueeze(-1) * mean.unsqueeze(-2)), (scaled_c, 2.0 * mean)),
        normaliser=0.5 * n * (beta / (2.0 * torch.pi)).log(),
    )
    return bound, posterior


def theorem_2(statistics: ProbitStatistics, eta: Tensor) -> tuple[ProbitBound, WhitenedPosterior]:
    r"""The collapsed bound for binary entries at :math:`\eta = L' \lambda`, and the q(v) that goes with it.

    :math:`\lambda' K_{BB} \lambda = \eta' \eta`, and the noise of the augmented variables is 1, so that
    :math:`M = I + W`. At the optimal eta the gradient of everything else is the partial one: eta is a constant here.
    """
    W, log_Phi, a5, a3, _, _ = statistics
    with torch.no_grad():
        M = identity_plus(W)
        log_det = -half_log_det(_cholesky(M))
        posterior = _posterior(eta, M, a5)
        inverse = posterior.root @ posterior.root.mT
    bound = ProbitBound(
        log_det=_known(log_det, (W, -0.5 * inverse)),
        trace=-0.5 * (a3 - trace(W)),
        fit=log_Phi,
        penalty=-0.5 * eta.square().sum(-1),
    )
    return bound, posterior


def through_kernel(bound: Tensor, K_BB: Tensor, L: Tensor, inner: Tensor) -> Tensor:
    r"""The bound `[...]`, with the gradient that it owes to K_BB through the whitening of the features.

    The map whitens with L, :math:`K_{BB} = L L'`, and treats it as a constant. A change of L changes every feature by
    :math:`d w_j = -L^{-1} dL\, w_j`, so that all that is needed of the entries is the matrix
    :math:`Q = \sum_j \bar w_j w_j'`, and

    .. math:: \frac{\partial L^*}{\partial K_{BB}} = -\tfrac12 L^{-T} Q L^{-1}.

    The theorems give Q in closed form from sums that all workers hold: this costs p x p algebra, once, and no
    communication, and no digit is lost in the derivative of a Cholesky factor.

    :param inner: Q, or where it is not symmetric (lambda short of its optimum) any matrix with its lower triangle.
    """
    through: Tensor = _ThroughKernel.apply(bound, K_BB, L, inner)  # type: ignore[no-untyped-call]
    return through


def _known(value: Tensor, *gradients: tuple[Tensor, Tensor]) -> Tensor:
    """A value `[...]` whose gradients are known in closed form: pairs of a tensor and the gradient with respect to it.

    It saves autograd the way back through a Cholesky factor, which is slower and has fewer digits.
    """
    tensors, found = zip(*gradients, strict=True)
    known: Tensor = _Known.apply(value, len(tensors), *tensors, *found)  # type: ignore[no-untyped-call]
    return known


class _Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, count: int, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors[count:])
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found = ctx.saved_tensors
        scaled = [gradient.reshape(gradient.shape + (1,) * (g.dim() - gradient.dim())) * g for g in found]
        return None, None, *scaled, *(None for _ in found)


class _ThroughKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bound: Tensor, K_BB: Tensor, L: Tensor, inner: Tensor) -> Tensor:
        ctx.save_for_backward(L, inner.tril() + inner.tril(-1).mT)
        ctx.shape = K_BB.shape
        return bound.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        L, Q = ctx.saved_tensors
        with one_core_each():
            half = torch.linalg.solve_triangular(L.mT, Q, upper=True)  # L^-T Q
            whole = torch.linalg.solve_triangular(L, half, upper=False, left=False)  # L^-T Q L^-1
        # K_BB may lack batch dimensions that the bound has.
        return gradient, (-0.5 * gradient[..., None, None] * whole).sum_to_size(ctx.shape), None, None


def identity_plus(matrix: Tensor) -> Tensor:
    """I + the matrix `[..., p, p]`."""
    return matrix + torch.eye(matrix.size(-1), dtype=matrix.dtype, device=matrix.device)


def _posterior(mean: Tensor, M: Tensor, moment: Tensor) -> WhitenedPosterior:
    root = root_of_inverse(M)
    eye = torch.eye(M.size(-1), dtype=M.dtype, device=M.device)
    inner = (M - eye) - (eye - root @ root.mT) + mean.unsqueeze(-1) * moment.unsqueeze(-2)
    return WhitenedPosterior(mean, root, inner)


def _cholesky(M: Tensor) -> Tensor:
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(M)
    if bool(failed.any()) or not bool(factor.detach().isfinite().all()):
        raise CholeskyError(
            "I + beta W must be positive definite. It is not in this precision: a parameter has left its range, or the noise "
            "is too small; try a larger noise, a larger variational_strategy.jitter_val, fewer inducing points, or float64."
        )
    return factor


def trace(matrix: Tensor) -> Tensor:
    """The trace `[...]` of a matrix `[..., p, p]`."""
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def half_log_det(factor: Tensor) -> Tensor:
    """Half the log determinant of F F'."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def root_of_inverse(M: Tensor) -> Tensor:
    """The lower triangular C with C C' = M^-1, without forming M^-1.

    With J the reversal of rows, J M J = F F' for a lower F, so M = U U' for the upper triangular U = J F J, and
    C = U^-T is lower triangular.
    """
    U = _cholesky(M.flip(-2, -1)).flip(-2, -1)
    eye = torch.eye(M.size(-1), dtype=M.dtype, device=M.device).expand_as(M)
    inverse: Tensor = torch.linalg.solve_triangular(U, eye, upper=True)
    return inverse.mT
