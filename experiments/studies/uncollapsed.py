r"""The bounds before anything is collapsed, dense and by autograd, and optimisation that counts what it costs.

Cost is counted in passes over all entries: a value and its gradient are two, a step of a solver for lambda is one.
"""

import importlib.metadata
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gptf_gpytorch import CollapsedELBO, NumericalError
from gptf_gpytorch.likelihoods import log_Phi
from gptf_gpytorch.training.optimizers import Point, make

RESULTS = Path(__file__).parents[1] / "results"


def _features(mll: CollapsedELBO, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L `[p, p]`, the whitened features w `[p, N]`, and the sum of k(x, x)."""
    model, strategy = mll.model, mll.strategy
    x, B = model.factors(indices), strategy.inducing_points
    K_BB = model.covar_module(B).to_dense() + strategy.jitter_val * torch.eye(len(B), dtype=B.dtype)
    L, failed = torch.linalg.cholesky_ex(K_BB)
    if bool(failed):
        raise NumericalError("K_BB must have a Cholesky factor. Got none at this step.")
    w = torch.linalg.solve_triangular(L, model.covar_module(B, x).to_dense(), upper=False)
    return L, w, model.covar_module(x, diag=True).sum()


def probit(mll: CollapsedELBO, indices: Tensor, y: Tensor, lam: Tensor, *, whitened: bool) -> Tensor:
    """L2* of Theorem 2 at any lambda `[p]`, or eta = L' lambda, which is a parameter like all others here."""
    L, w, a3 = _features(mll, indices)
    eta = lam if whitened else L.T @ lam
    W = w @ w.T
    log_det = torch.linalg.cholesky(W + torch.eye(len(W), dtype=W.dtype)).diagonal().log().sum()
    mean = mll.model.mean_module(mll.model.factors(indices))
    fit = log_Phi((2.0 * y - 1.0) * (mean + eta @ w)).sum() - 0.5 * eta.square().sum()
    return fit - log_det - 0.5 * (a3 - W.trace()) + mll.model.factors.log_prior()


def gaussian(mll: CollapsedELBO, indices: Tensor, y: Tensor, mean: Tensor, root: Tensor, *, whitened: bool) -> Tensor:
    r"""The bound before Theorem 1 at any q(v) = N(mean, root root') of inducing values, whitened or not.

    .. math:: \sum_j \mathrm E_q \log N(y_j \mid f_j, \beta^{-1}) - \mathrm{KL}(q(v) \| p(v)) + \log p(U)
    """
    L, w, a3 = _features(mll, indices)
    if not whitened:  # L^-1 v is what the features multiply
        mean = torch.linalg.solve_triangular(L, mean[:, None], upper=False)[:, 0]
        root = torch.linalg.solve_triangular(L, root, upper=False)
    residual = y - mll.model.mean_module(mll.model.factors(indices)) - mean @ w
    variance = a3 - w.square().sum() + (root.T @ w).square().sum()
    beta = mll.likelihood.noise.squeeze().reciprocal()
    fit = 0.5 * len(y) * (beta / (2.0 * math.pi)).log() - 0.5 * beta * (residual.square().sum() + variance)
    log_det = torch.linalg.slogdet(root).logabsdet
    divergence = 0.5 * (root.square().sum() + mean.square().sum() - len(mean)) - log_det
    return fit - divergence + mll.model.factors.log_prior()


def posterior(mll: CollapsedELBO, *, whitened: bool) -> tuple[Tensor, Tensor]:
    """The optimal q(v) of the last evaluation: its mean `[p]` and a root of its covariance `[p, p]`."""
    q = mll.strategy._variational_distribution
    mean, root = q.variational_mean.detach().clone(), q.chol_variational_covar.detach().tril()
    if not whitened:
        _, L = mll.strategy.factor(may_raise_jitter=False)
        mean, root = L.detach() @ mean, L.detach() @ root
    return mean, root


class Counted:
    """An objective for the package's optimisers, which writes down the best bound against the passes it took.

    :param bound: what is to be raised, at the present parameters.
    :param passes: how many passes the last call of ``bound`` and its gradient took.
    """

    def __init__(
        self, parameters: Sequence[Tensor], bound: Callable[[], Tensor], passes: Callable[[], int] = lambda: 2
    ) -> None:
        self.parameters, self.bound, self.passes = list(parameters), bound, passes
        self.spent, self.best, self.began = 0, -math.inf, time.perf_counter()
        #: Passes, seconds and the best bound so far.
        self.trace: list[tuple[int, float, float]] = []

    def vector(self) -> Tensor:
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])

    def __call__(self, x: Tensor) -> Point:
        with torch.no_grad():
            for parameter, part in zip(self.parameters, x.split([p.numel() for p in self.parameters]), strict=True):
                parameter.copy_(part.view_as(parameter))
        bound = self.bound()
        found = torch.autograd.grad(-bound, self.parameters, allow_unused=True, materialize_grads=True)
        self.spent += self.passes()
        self.best = max(self.best, bound.item())
        self.trace.append((self.spent, time.perf_counter() - self.began, self.best))
        return Point(x, -bound.item(), torch.cat([part.reshape(-1) for part in found]))

    def climb(self, optimizer: str, budget: int) -> None:
        """Steps until the budget of passes is spent, or no step helps."""
        steps, point = make(optimizer, 0.03), self(self.vector())
        while self.spent < budget:
            following = steps.step(self, point)
            if following is None:
                break
            point = following
        self(point.x)


def write(name: str, result: dict[str, Any]) -> None:
    """Keep a study's result, and what it was computed with."""
    RESULTS.mkdir(exist_ok=True)
    versions = {package: importlib.metadata.version(package) for package in ("gptf_gpytorch", "torch", "gpytorch")}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"versions": versions, **result}, indent=1) + "\n")
    print(f"wrote {path}")
