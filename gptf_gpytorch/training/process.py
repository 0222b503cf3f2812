"""g, the Gaussian process of the default model: told how often the entities of an entry occur, it explains what is left.

Kernel parameters and inducing points maximise the collapsed bound of the residuals; after that g is linear in the whitened values
at its inducing points, which the sampler draws.
"""

from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from gptf_gpytorch.initialization import initialize
from gptf_gpytorch.variational.elbo import CollapsedELBO
from gptf_gpytorch.variational.strategy import CollapsedVariationalStrategy

_JITTER = 1e-6
# Steps of L-BFGS: the kernel has a lengthscale for each mode, and the residuals are mostly noise.
_STEPS = 30


class _ResidualGP(gpytorch.models.ApproximateGP):  # type: ignore[misc]
    def __init__(self, inducing_points: Tensor) -> None:
        super().__init__(CollapsedVariationalStrategy(self, inducing_points))
        self.mean_module = gpytorch.means.ZeroMean()
        rbf = gpytorch.kernels.RBFKernel(ard_num_dims=inducing_points.size(-1))
        self.covar_module = gpytorch.kernels.ScaleKernel(rbf)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@dataclass(frozen=True)
class Process:
    """An RBF process at fixed inducing points.

    :param points: `[p, d]`.
    :param lengthscale: `[d]`.
    :param outputscale: `[]`.
    """

    points: Tensor
    lengthscale: Tensor
    outputscale: Tensor

    @classmethod
    def learnt(cls, inputs: Tensor, residuals: Tensor, noise_precision: float, points: int, seed: int) -> "Process":
        """The process that explains residuals `[n]` at inputs `[n, d]` best, by the collapsed bound."""
        points = min(points, len(inputs))
        model = _ResidualGP(inputs[:points].clone()).to(inputs)
        likelihood = gpytorch.likelihoods.GaussianLikelihood(
            noise_constraint=gpytorch.constraints.GreaterThan(1e-8)
        ).to(inputs)
        mll = CollapsedELBO(likelihood, model, num_data=len(residuals))
        initialize(mll, inputs, residuals, seed=seed)
        likelihood.noise = 1.0 / noise_precision
        likelihood.raw_noise.requires_grad_(False)
        model.covar_module.base_kernel.lengthscale = float(inputs.size(1)) ** 0.5
        model.covar_module.outputscale = 0.1
        parameters = [parameter for parameter in mll.parameters() if parameter.requires_grad]
        optimizer = torch.optim.LBFGS(parameters, max_iter=_STEPS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = -mll(model.train()(inputs), residuals)
            loss.backward()
            return loss

        with torch.enable_grad():
            optimizer.step(closure)
        kernel = model.covar_module
        return cls(
            mll.strategy.inducing_points.detach().clone(),
            kernel.base_kernel.lengthscale.detach().reshape(-1).clone(),
            kernel.outputscale.detach().clone(),
        )

    def features(self, inputs: Tensor) -> Tensor:
        """The features w `[n, p]`: k(B, x) whitened by the Cholesky factor of K_BB."""
        K_BB = self._kernel(self.points, self.points)
        L = torch.linalg.cholesky(K_BB + _JITTER * self.outputscale * torch.eye(len(K_BB), dtype=K_BB.dtype))
        w: Tensor = torch.linalg.solve_triangular(L, self._kernel(self.points, inputs), upper=False).T.contiguous()
        return w

    def left(self, features: Tensor) -> Tensor:
        """`[n]` k(x, x) - w'w: the variance that the inducing points do not explain."""
        return (self.outputscale - features.square().sum(1)).clamp(min=0.0)

    def _kernel(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = a / self.lengthscale, b / self.lengthscale
        return self.outputscale * torch.exp(-0.5 * torch.cdist(a, b).square())
