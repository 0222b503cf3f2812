r"""lambda, the variational parameter of the probit bound, in whitened coordinates :math:`\eta = L' \lambda`.

As a function of eta the bound is :math:`g(\eta) = \sum_j v_j \log \Phi(t_j) - \frac12 \eta' \eta` plus a constant. It
is strictly concave, with gradient :math:`a_5 - \eta` and Hessian :math:`-(I + H)`. The paper's fixed point is the
majorise-minimise step that replaces every curvature :math:`h_j < 1` in H by 1, which turns H into W. Both solvers
below stop at the same unique optimum; each pass is one map over all entries and one collective.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gptf_gpytorch.variational.bounds import identity_plus
from gptf_gpytorch.variational.statistics import CurvatureStatistics

Evaluate = Callable[[Tensor], CurvatureStatistics]

# A trial point may look lower than it is by the rounding of a sum of many terms.
_ROUNDING = 16.0
# Passes without a higher bound or a smaller gradient after which rounding, not distance, is what is left.
_PATIENCE = 3
# A step that is expected to end this far below the tolerance need not be looked at by a pass of its own.
_MARGIN = 0.1


@dataclass(frozen=True)
class Solution:
    r"""Where a solver stopped.

    :param eta: the best point it saw, or one step further `[..., p]`.
    :param gradient_norm: :math:`|a_5 - \eta|_2` there, the largest of a batch.
    :param passes: maps over all entries.
    :param converged: whether the norm is within the tolerance.
    :param expected: whether the norm is what is expected of the last step, at which no pass has looked.
    """

    eta: Tensor
    gradient_norm: float
    passes: int
    converged: bool
    expected: bool = False


def newton(
    evaluate: Evaluate, eta: Tensor, *, tolerance: float, max_passes: int = 50, foresee: bool = False
) -> Solution:
    r"""Newton's method with step halving: :math:`\eta \leftarrow \eta + t (I + H)^{-1} (a_5 - \eta)`.

    A step is kept only if the bound does not fall, or if it solves the problem; concavity makes some t good enough.

    :param foresee: return after a step that is expected to solve it. Near the optimum a step squares the gradient's
        norm, up to a factor that the step before has shown. For callers whose next map sees :math:`a_5` anyway.
    """
    here = evaluate(eta)
    best, t, waited = _Point(eta, here), torch.ones_like(here.log_Phi), 0
    passes, smallest, expected = 1, best.norm, float("inf")
    while best.norm > tolerance and passes < max_passes and waited < _PATIENCE:
        step = torch.linalg.solve(identity_plus(best.at.H), best.gradient.unsqueeze(-1)).squeeze(-1)
        if foresee and expected <= _MARGIN * tolerance:
            return Solution(best.eta + step, expected, passes, converged=True, expected=True)
        trial = _Point(best.eta + t[..., None] * step, evaluate(best.eta + t[..., None] * step))
        passes += 1
        slack = _ROUNDING * torch.finfo(eta.dtype).eps * best.at.log_Phi.abs().clamp_min(1.0)
        # Concavity: where the gradient is within the tolerance is the top, whatever rounding says of the value. False for NaN.
        rises = (trial.value >= best.value - slack) | (trial.norms <= tolerance)
        gained = bool((trial.value > best.value + slack).any())
        whole = bool((rises & (t == 1.0)).all())
        expected = trial.norm * (trial.norm / best.norm) ** 2 if whole else float("inf")
        t = torch.where(rises, torch.ones_like(t), 0.5 * t)
        best = trial.where(rises, best)
        waited = 0 if gained or best.norm < smallest or not bool(rises.all()) else waited + 1
        smallest = min(smallest, best.norm)
    return Solution(best.eta, best.norm, passes, best.norm <= tolerance)


def fixed_point(evaluate: Evaluate, W: Tensor, eta: Tensor, *, tolerance: float, max_passes: int = 1000) -> Solution:
    r"""The paper's iteration, Eq. 8, :math:`\lambda \leftarrow (K_{BB} + A_1)^{-1} (A_1 \lambda + a_5)`.

    Whitened, it is :math:`\eta \leftarrow M^{-1} (W \eta + a_5)` with :math:`M = I + W`. Each step can only raise the
    bound.
    """
    R = torch.linalg.cholesky(identity_plus(W))
    here = _Point(eta, evaluate(eta))
    passes = 1
    while here.norm > tolerance and passes < max_passes:
        right = (W @ here.eta.unsqueeze(-1)).squeeze(-1) + here.at.a5
        eta = torch.cholesky_solve(right.unsqueeze(-1), R).squeeze(-1)
        here = _Point(eta, evaluate(eta))
        passes += 1
    return Solution(here.eta, here.norm, passes, here.norm <= tolerance)


class _Point:
    """An eta and the statistics there."""

    def __init__(self, eta: Tensor, at: CurvatureStatistics) -> None:
        self.eta, self.at = eta, at
        self.value = at.log_Phi - 0.5 * eta.square().sum(-1)
        self.gradient = at.a5 - eta
        self.norms = self.gradient.norm(dim=-1)
        self.norm = float(self.norms.max())

    def where(self, keep: Tensor, other: "_Point") -> "_Point":
        """This point in the batches where ``keep``, the other one elsewhere."""
        mine, theirs = self.at, other.at
        at = CurvatureStatistics(
            torch.where(keep, mine.log_Phi, theirs.log_Phi),
            torch.where(keep[..., None], mine.a5, theirs.a5),
            torch.where(keep[..., None, None], mine.H, theirs.H),
        )
        return _Point(torch.where(keep[..., None], self.eta, other.eta), at)
