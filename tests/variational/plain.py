"""A GP with plain inputs and the collapsed strategy."""

import gpytorch
import torch

from gptf_gpytorch import CollapsedVariationalStrategy


class Plain(gpytorch.models.ApproximateGP):
    def __init__(self, inducing_points: torch.Tensor) -> None:
        super().__init__(CollapsedVariationalStrategy(self, inducing_points))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
