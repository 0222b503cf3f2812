r"""The bounds of a part of the entries, at a q(v) that remembers the parts before it.

Collapsed, the bound of a small part has the q(v) that is best for this part alone. Here q(v) is a state, that of the
strategy, and every evaluation moves it by a share :math:`\rho` of the way to where the part, weighed to stand for all
entries, wants it, in natural parameters: a step of stochastic variational inference along the natural gradient. The
bound is that before it was collapsed, at the q(v) that was reached (but for the mean of labels, which is that before the step:
another one would take another pass), and so is the gradient of everything else; at :math:`\rho = 1` both are those of
:mod:`~gptf_gpytorch.variational.bounds`. The term ``fit`` has what is left of the divergence, which is 0 at the optimum.

With :math:`q(u) = N(m, S)`, whitened, and the precision :math:`M = S^{-1}`:

.. math:: M \leftarrow (1 - \rho) M + \rho (I + \beta W), \qquad M m \leftarrow (1 - \rho) M m + \rho \beta c,

and for labels, with :math:`m = \eta` and :math:`\beta = 1`, :math:`\eta \leftarrow \eta + \rho M^{-1} (a_5 - \eta)`, a
share of the paper's fixed point.
"""

import torch
from torch import Tensor

from gptf_gpytorch.variational.bounds import (
    GaussianBound,
    ProbitBound,
    WhitenedPosterior,
    half_log_det,
    identity_plus,
    root_of_inverse,
    trace,
)
from gptf_gpytorch.variational.statistics import GaussianStatistics, ProbitStatistics


def remembering_1(
    statistics: GaussianStatistics, beta: Tensor, mean: Tensor, root: Tensor, share: float
) -> tuple[GaussianBound, WhitenedPosterior]:
    """The bound of continuous entries, and q(v), which has moved from N(mean, root root')."""
    W, c, a2, a3, n, _ = statistics
    with torch.no_grad():
        before = _precision(root)
        M = torch.lerp(before, identity_plus(beta[..., None, None] * W), share)
        moment = torch.lerp(_times(before, mean), beta[..., None] * c, share)
        root = root_of_inverse(M)
        S = root @ root.mT
        mean = _times(S, moment)
        second = S + mean.unsqueeze(-1) * mean.unsqueeze(-2)
        inner = W - second @ W + mean.unsqueeze(-1) * c.unsqueeze(-2)
        prior = -0.5 * (trace(S) + mean.square().sum(-1) - mean.size(-1))
    error = a2 - 2.0 * (mean * c).sum(-1) + (second * W).sum((-2, -1))
    bound = GaussianBound(
        log_det=half_log_det(root),
        trace=-0.5 * beta * (a3 - trace(W)),
        fit=-0.5 * beta * error + prior,
        normaliser=0.5 * n * (beta / (2.0 * torch.pi)).log(),
    )
    return bound, WhitenedPosterior(mean, root, beta.detach()[..., None, None] * inner)


def remembering_2(
    statistics: ProbitStatistics, eta: Tensor, root: Tensor, share: float
) -> tuple[ProbitBound, WhitenedPosterior]:
    """The bound of binary entries at the eta that their statistics are for, and q(v), whose mean has moved on from it."""
    W, log_Phi, a5, a3, _, _ = statistics
    with torch.no_grad():
        M = torch.lerp(_precision(root), identity_plus(W), share)
        root = root_of_inverse(M)
        S = root @ root.mT
        inner = W - S @ W + eta.unsqueeze(-1) * a5.unsqueeze(-2)
        prior = -0.5 * (trace(S) - eta.size(-1))
        mean = eta + share * _times(S, a5 - eta)
    bound = ProbitBound(
        log_det=half_log_det(root),
        trace=-0.5 * (a3 - trace(W)),
        fit=log_Phi - 0.5 * (S * W).sum((-2, -1)) + prior,
        penalty=-0.5 * eta.square().sum(-1),
    )
    return bound, WhitenedPosterior(mean, root, inner)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _precision(root: Tensor) -> Tensor:
    """(root root')^-1, for a lower triangular root."""
    eye = torch.eye(root.size(-1), dtype=root.dtype, device=root.device).expand_as(root)
    inverse = torch.linalg.solve_triangular(root, eye, upper=False)
    precision: Tensor = inverse.mT @ inverse
    return precision
