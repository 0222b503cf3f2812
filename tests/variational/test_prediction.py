"""Marginals of q(f) in chunks: equal to GPyTorch's, in any number, without state left behind."""

import gpytorch
import numpy as np
import pytest
import torch
from conftest import Small, small
from plain import Plain
from trained import trained

from gptf_gpytorch import CollapsedELBO, InputError, StalePosteriorError, marginals

KERNELS = {
    "RBF": lambda: None,
    "Matern": lambda: gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5)),
    "any other": lambda: gpytorch.kernels.RQKernel(),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("binary", [False, True], ids=["gaussian", "probit"])
@pytest.mark.parametrize("chunk_size", [7, 4096])
def test_they_are_those_of_the_model(kernel: str, binary: bool, chunk_size: int) -> None:
    mean = gpytorch.means.ConstantMean()
    problem = small(binary, kernel=KERNELS[kernel](), mean=mean)
    mean.initialize(constant=0.4)
    trained(problem)
    cells = torch.cartesian_prod(*(torch.arange(d) for d in problem.model.factors.shape))
    found = marginals(problem.model, cells, chunk_size=chunk_size)
    assert problem.model.training, "the mode must be as it was"
    with torch.no_grad():
        q = problem.model.eval()(cells)
    torch.testing.assert_close(found.mean, q.mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found.variance, q.variance, rtol=1e-9, atol=1e-10)


def test_plain_inputs_and_arrays_and_nothing() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 2, dtype=torch.float64), torch.randn(40, dtype=torch.float64)
    model = Plain(x[:5].clone()).double()
    mll = CollapsedELBO(gpytorch.likelihoods.GaussianLikelihood(), model, num_data=40)
    mll(model(x), y).backward()
    found = marginals(model, x.numpy(), chunk_size=9)
    with torch.no_grad():
        torch.testing.assert_close(found.mean, model.eval()(x).mean, rtol=1e-9, atol=1e-10)
    assert marginals(model, np.zeros((0, 2))).mean.shape == (0,)


def test_a_stale_posterior_is_brought_up_to_date_or_refused(either: Small) -> None:
    from copy import deepcopy

    trained(either)
    copy = deepcopy(either.model)
    for model in (either.model, copy):
        with torch.no_grad():
            model.factors[0].add_(0.3)
    marginals(either.model, either.indices)
    assert not either.model.variational_strategy.is_stale
    with pytest.raises(StalePosteriorError):
        marginals(copy, either.indices)


def test_bad_input(either: Small) -> None:
    with pytest.raises(InputError, match="Got VariationalStrategy"):
        marginals(either.model.to_svgp(), either.indices)
    with pytest.raises(InputError, match="must be integers"):
        marginals(either.model, either.indices.double())
    with pytest.raises(InputError, match="chunk_size must be an integer"):
        marginals(either.model, either.indices, chunk_size=0)
