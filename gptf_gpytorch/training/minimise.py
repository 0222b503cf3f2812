"""L-BFGS for small smooth problems: SciPy's, which loads in a tenth of the time that torch's needs."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor


def minimise(loss: Callable[..., Tensor], start: Sequence[Tensor], steps: int) -> list[Tensor]:
    """Where a differentiable loss of some float64 tensors is smallest, after at most so many steps."""
    sizes = [tensor.numel() for tensor in start]

    def unpacked(x: np.ndarray) -> list[Tensor]:
        parts = torch.from_numpy(x.copy()).split(sizes)
        return [part.view_as(tensor) for part, tensor in zip(parts, start, strict=True)]

    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            parameters = [part.clone().requires_grad_() for part in unpacked(x)]
            value = loss(*parameters)
            gradient = torch.autograd.grad(value, parameters)
        return float(value.detach()), torch.cat([part.flatten() for part in gradient]).detach().numpy()

    x = torch.cat([tensor.flatten() for tensor in start]).double().numpy()
    found = minimize(value_and_gradient, x, jac=True, method="L-BFGS-B", options={"maxiter": steps})
    return unpacked(found.x)
