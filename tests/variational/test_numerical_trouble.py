"""Singular kernels, jitter, NaN: typed errors that say what to try."""

import warnings
from copy import deepcopy

import pytest
import torch
from conftest import Small, small
from plain import Plain
from trained import trained

from gptf_gpytorch import (
    GPTF,
    CollapsedELBO,
    InputError,
    NumericalError,
)
from gptf_gpytorch.errors import CholeskyError, JitterWarning

# Numerical trouble


def test_a_singular_kernel_gets_more_jitter_and_says_so(gaussian: Small) -> None:
    strategy = gaussian.model.variational_strategy
    with torch.no_grad():
        strategy.inducing_points.copy_(strategy.inducing_points[:1].expand(6, -1))
    gaussian.model.covar_module.outputscale = 1e6
    strategy.jitter_val = 1e-12
    mll = gaussian.mll()
    with pytest.warns(JitterWarning, match="instead of 1e-12"):
        mll(gaussian.model(gaussian.indices), gaussian.y)
    assert strategy.jitter_val > 1e-12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mll(gaussian.model(gaussian.indices), gaussian.y)  # the jitter that worked is kept


def test_a_kernel_that_no_jitter_saves_is_an_error_that_says_what_to_try(gaussian: Small) -> None:
    strategy = gaussian.model.variational_strategy
    with torch.no_grad():
        strategy.inducing_points.copy_(strategy.inducing_points[:1].expand(6, -1))
    gaussian.model.covar_module.outputscale = 1e12
    strategy.jitter_val = 1e-12
    with pytest.raises(CholeskyError, match=r"jitter up to 1e-08. Try fewer inducing points.*jitter_val"):
        gaussian.mll()(gaussian.model(gaussian.indices), gaussian.y)
    assert strategy.jitter_val == 1e-12


def test_an_evaluation_that_may_not_write_may_not_raise_the_jitter(gaussian: Small) -> None:
    strategy = gaussian.model.variational_strategy
    with torch.no_grad():
        strategy.inducing_points.copy_(strategy.inducing_points[:1].expand(6, -1))
    gaussian.model.covar_module.outputscale = 1e6
    strategy.jitter_val = 1e-12
    with torch.no_grad(), pytest.raises(CholeskyError, match="jitter up to 1e-12"):
        gaussian.mll()(gaussian.model(gaussian.indices), gaussian.y)
    assert strategy.jitter_val == 1e-12


def test_a_jitter_of_zero_can_be_raised(gaussian: Small) -> None:
    strategy = gaussian.model.variational_strategy
    with torch.no_grad():
        strategy.inducing_points.copy_(strategy.inducing_points[:1].expand(6, -1))
    strategy.jitter_val = 0.0
    with pytest.warns(JitterWarning, match="instead of 0"):
        gaussian.mll()(gaussian.model(gaussian.indices), gaussian.y)


@pytest.mark.parametrize("value", [-1e-3, float("nan"), float("inf"), "a lot"])
def test_a_jitter_must_be_finite_and_not_negative(gaussian: Small, value: object) -> None:
    with pytest.raises(InputError, match="jitter_val must be finite and at least 0"):
        gaussian.model.variational_strategy.jitter_val = value


def test_the_default_jitter_follows_the_precision_until_there_is_a_posterior() -> None:
    points = torch.randn(4, 2)
    model = Plain(points)
    assert model.variational_strategy.jitter_val == pytest.approx(1e-4)
    assert model.double().variational_strategy.jitter_val == pytest.approx(1e-6)
    chosen = GPTF((5, 4), 2, 3, jitter_val=1e-5)
    assert chosen.float().variational_strategy.jitter_val == pytest.approx(1e-5)


def test_a_bound_that_is_not_finite_is_an_error_and_writes_nothing(gaussian: Small) -> None:
    mll = trained(gaussian)
    before = deepcopy(gaussian.model.state_dict())
    gaussian.likelihood.noise_covar.raw_noise.data.fill_(float("nan"))
    with pytest.raises(NumericalError):
        mll(gaussian.model(gaussian.indices), gaussian.y)
    for name, value in gaussian.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    unused = small(False)
    with torch.no_grad():
        unused.model.factors[0][unused.indices[:, 0].max()] = 0.0
        rows = unused.indices[:, 0] != 4
        unused.model.factors[0][4] = float("nan")  # no entry uses it, but its prior does
    fewer = CollapsedELBO(unused.likelihood, unused.model, num_data=int(rows.sum()))
    with pytest.raises(NumericalError, match="factor_prior"):
        fewer(unused.model(unused.indices[rows]), unused.y[rows])


def test_nan_parameters_are_named(either: Small) -> None:
    with torch.no_grad():
        either.model.variational_strategy.inducing_points[0, 0] = float("nan")
    with pytest.raises(NumericalError, match="must be finite"):
        either.mll()(either.model(either.indices), either.y)
    fresh = small(False)
    with torch.no_grad():
        fresh.model.factors[0][0, 0] = float("nan")
    with pytest.raises(NumericalError, match="Got NaN or infinity in entries 0 to 39: "):
        fresh.mll()(fresh.model(fresh.indices), fresh.y)


@pytest.mark.parametrize("n", [10, 40], ids=["fewer entries than entities", "more"])
def test_the_chunk_with_a_nan_is_named(n: int) -> None:
    problem = small(False, n=n)
    problem.indices[:, 0] = 0
    problem.indices[n // 2, 0] = 1
    with torch.no_grad():
        problem.model.factors[0][1] = float("nan")
    with pytest.raises(NumericalError, match=f"in entries {n // 2} to {n - 1}: "):
        problem.mll(chunk_size=n // 2)(problem.model(problem.indices), problem.y)
