"""The priors that the fused map knows: stationary ARD kernels with an outputscale, and a constant mean."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch
from torch import Tensor

from gptf_gpytorch.kernels import FactorRBFKernel

_Values = Callable[[Tensor, float, Tensor | None], None]


def _rbf(half: Tensor, scale: float, slope: Tensor | None) -> None:
    half.exp_()  # the scale is in the exponent already


def _matern(nu: float) -> _Values:
    root = math.sqrt(2.0 * nu)

    def values(half: Tensor, scale: float, slope: Tensor | None) -> None:
        r = half.mul_(-2.0).clamp_(min=1e-30).sqrt_()  # the distance, in place of minus half its square
        decay = torch.exp(r * -root).mul_(scale)
        if nu == 0.5:
            polynomial, derivative = torch.ones_like(r), r.reciprocal()
        elif nu == 1.5:
            polynomial, derivative = 1.0 + root * r, torch.full_like(r, 3.0)
        else:
            linear = 1.0 + root * r
            polynomial, derivative = linear + (5.0 / 3.0) * r * r, (5.0 / 3.0) * linear
        if slope is not None:
            torch.mul(decay, derivative, out=slope)
        torch.mul(decay, polynomial, out=half)

    return values


@dataclass(frozen=True)
class StationaryPrior:
    """A prior that the fused map knows: a stationary ARD kernel and a constant mean.

    :param values: turns minus half the squared distances into the kernel's values, in place, and writes H to its last
        argument where that is given; for RBF, H equals the values.
    """

    nu: float  # the smoothness: infinite for RBF
    values: _Values
    inducing_points: Tensor  # [p, D]
    lengthscale: Tensor  # [D] or [1]
    outputscale: Tensor  # []
    mean: Tensor | None  # [], None for zero

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return f"Matern {self.nu}" if self.slope_differs else "RBF"

    @property
    def slope_differs(self) -> bool:
        """Whether H is another matrix than K."""
        return math.isfinite(self.nu)

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """What a gradient is returned for."""
        return (self.inducing_points, self.lengthscale, self.outputscale, *(() if self.mean is None else (self.mean,)))


class KernelPrior:
    """A model whose prior is its ``mean_module`` and its ``covar_module``, and nothing else.

    A model that inherits this ``forward``, as :class:`~gptf_gpytorch.GPTF` does, takes the fused path where its
    kernel and mean allow it; a ``forward`` of another kind takes the generic one.
    """

    covar_module: gpytorch.kernels.Kernel
    mean_module: gpytorch.means.Mean

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior at x `[..., n, D]`."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def recognise(model: Any, inducing_points: Tensor) -> StationaryPrior | None:
    """The prior of a model that uses one of the fused kernels and a zero or constant mean, or None.

    Only exact types count: a subclass may compute something else.
    """
    if getattr(type(model), "forward", None) is not KernelPrior.forward:
        return None
    kernel, outputscale = model.covar_module, inducing_points.new_ones(())
    if type(kernel) is gpytorch.kernels.ScaleKernel and kernel.active_dims is None:
        kernel, outputscale = kernel.base_kernel, kernel.outputscale
    nu = math.inf
    values: _Values = _rbf
    if type(kernel) is gpytorch.kernels.MaternKernel and kernel.nu in (0.5, 1.5, 2.5):
        nu, values = kernel.nu, _matern(kernel.nu)
    elif type(kernel) not in (gpytorch.kernels.RBFKernel, FactorRBFKernel):
        return None
    mean: Tensor | None = None
    if type(model.mean_module) is gpytorch.means.ConstantMean:
        mean = model.mean_module.constant
    elif type(model.mean_module) is not gpytorch.means.ZeroMean:
        return None
    lengthscale = kernel.lengthscale
    plain = kernel.active_dims is None and lengthscale.dim() == 2 and outputscale.dim() == 0
    if not plain or inducing_points.dim() != 2 or (mean is not None and mean.dim() != 0):
        return None
    return StationaryPrior(nu, values, inducing_points, lengthscale.squeeze(-2), outputscale, mean)
