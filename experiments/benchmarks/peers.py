"""Peers: what a user would otherwise evaluate on the same inputs, the same kernel and the same data."""

from collections.abc import Callable

import gpytorch
import torch
from gpytorch.kernels import InducingPointKernel
from torch import Tensor

from gptf_gpytorch import CollapsedELBO


def sgpr(mll: CollapsedELBO, indices: Tensor, y: Tensor) -> Callable[[], None]:
    """GPyTorch's SGPR with the factors as an embedding."""
    model, likelihood = mll.model, mll.likelihood

    class SGPR(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(model.factors(indices).detach(), y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            points = model.variational_strategy.inducing_points.detach().clone()
            self.covar_module = InducingPointKernel(model.covar_module, inducing_points=points, likelihood=likelihood)

        def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    exact = SGPR().train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, exact)

    def run() -> None:
        mll.zero_grad()
        exact.zero_grad()
        x = model.factors(indices)
        exact.set_train_data(x, y, strict=False)
        (-objective(exact(x), y)).backward()

    return run


def naive(mll: CollapsedELBO, indices: Tensor, y: Tensor) -> Callable[[], None]:
    """The same whitened bound in dense torch, differentiated by autograd: all N features at once."""
    model, likelihood = mll.model, mll.likelihood

    def run() -> None:
        mll.zero_grad()
        x, B = model.factors(indices), model.variational_strategy.inducing_points
        eye = torch.eye(len(B), dtype=x.dtype)
        L = torch.linalg.cholesky(model.covar_module(B).to_dense() + model.variational_strategy.jitter_val * eye)
        w = torch.linalg.solve_triangular(L, model.covar_module(B, x).to_dense(), upper=False)
        beta = likelihood.noise.squeeze().reciprocal()
        W, c = w @ w.T, w @ y
        R = torch.linalg.cholesky(eye + beta * W)
        fit = y @ y - beta * torch.linalg.solve_triangular(R, c.unsqueeze(-1), upper=False).square().sum()
        trace = model.covar_module(x, diag=True).sum() - W.trace()
        bound = -R.diagonal().log().sum() - 0.5 * beta * (trace + fit) + 0.5 * len(y) * (beta / (2 * torch.pi)).log()
        (-(bound + model.factors.log_prior()) / len(y)).backward()

    return run
