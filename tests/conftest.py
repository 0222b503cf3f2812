"""Small problems that many tests share."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import gpytorch
import numpy as np
import pytest
import reference
import torch
from torch import Tensor

from gptf_gpytorch import GPTF, CollapsedELBO, ProbitLikelihood

SHAPE, P, N = (5, 4, 3), 6, 40
#: Tests of several real processes with time limits: horovodrun jobs, tracking servers, signals.
REAL_PROCESSES = {"distributed", "reporting", "test_cli_signals.py", "test_stopping.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Try what a busy machine may be too slow for once more. The report names it (``R``): what comes often is a fault."""
    for item in items:
        if REAL_PROCESSES & {item.path.name, item.path.parent.name}:
            item.add_marker(pytest.mark.flaky(reruns=1))


@dataclass
class Small:
    """A model with well-spread inputs, its bound, and the same problem as arrays for the oracle."""

    model: GPTF
    likelihood: gpytorch.likelihoods.Likelihood
    indices: Tensor
    y: Tensor

    def mll(self, **options: object) -> CollapsedELBO:
        return CollapsedELBO(self.likelihood, self.model, num_data=len(self.y), **options)

    def parameters(self) -> dict[str, Tensor]:
        return {**dict(self.model.named_parameters()), **dict(self.likelihood.named_parameters())}

    @property
    def U(self) -> list[np.ndarray]:
        return [table.detach().numpy() for table in self.model.factors.weights]

    @property
    def X(self) -> np.ndarray:
        return np.stack([reference.concatenate(self.U, index) for index in self.indices.tolist()])

    @property
    def B(self) -> np.ndarray:
        return self.model.variational_strategy.inducing_points.detach().numpy()

    @property
    def k(self) -> Callable[[np.ndarray, np.ndarray], float]:
        kernel = self.model.covar_module
        ell = kernel.base_kernel.lengthscale.detach().flatten().tolist()
        return partial(reference.rbf, lengthscale=ell, outputscale=kernel.outputscale.item())


def small(binary: bool, *, n: int = N, rank: int | tuple[int, ...] = 2, seed: int = 0, **options: object) -> Small:
    torch.manual_seed(seed)
    model = GPTF(SHAPE, rank, min(P, n), **options)
    with torch.no_grad():
        for parameter in (*model.factors.weights, model.variational_strategy.inducing_points):
            parameter.copy_(torch.randn_like(parameter))
    likelihood = ProbitLikelihood() if binary else gpytorch.likelihoods.GaussianLikelihood()
    if not binary:
        likelihood.double().noise = 0.3
    indices = torch.stack([torch.randint(d, (n,)) for d in SHAPE], dim=-1)
    y = (torch.rand(n) < 0.5).double() if binary else torch.randn(n, dtype=torch.float64)
    return Small(model, likelihood, indices, y)


@pytest.fixture(params=[False, True], ids=["gaussian", "probit"])
def either(request: pytest.FixtureRequest) -> Small:
    """The small problem, once with continuous and once with binary entries."""
    return small(request.param)


@pytest.fixture
def gaussian() -> Small:
    return small(False)


@pytest.fixture
def probit() -> Small:
    return small(True)
