"""GPyTorch's own test cases for variational strategies, batches, and what the strategy refuses."""

import unittest

import gpytorch
import pytest
import torch
from conftest import Small
from gpytorch.test.variational_test_case import VariationalTestCase
from plain import Plain

from gptf_gpytorch import (
    CollapsedELBO,
    CollapsedVariationalDistribution,
    CollapsedVariationalStrategy,
    InputError,
    ProbitLikelihood,
)
from gptf_gpytorch.errors import PrecisionWarning

# GPyTorch's contract


@pytest.mark.filterwarnings("ignore::gptf_gpytorch.errors.PrecisionWarning")
@pytest.mark.filterwarnings("ignore:It is deprecated to return a value")
class TestGaussianContract(VariationalTestCase, unittest.TestCase):
    """All of it, unmodified: batches of data, models and inducing points, fantasies; in single precision."""

    seed = 0
    batch_shape = torch.Size([])
    distribution_cls = CollapsedVariationalDistribution
    strategy_cls = CollapsedVariationalStrategy
    mll_cls = CollapsedELBO


class Labels:
    """The contract's targets are linspace(-1, 1): for probit, their signs."""

    def __new__(cls, likelihood: ProbitLikelihood, model: gpytorch.models.ApproximateGP, num_data: int):
        mll = CollapsedELBO(likelihood, model, num_data=num_data)
        return lambda output, target: mll(output, (target > 0).to(target.dtype))


@pytest.mark.filterwarnings("ignore::gptf_gpytorch.errors.PrecisionWarning")
@pytest.mark.filterwarnings("ignore:It is deprecated to return a value")
class TestProbitContract(VariationalTestCase, unittest.TestCase):
    """What applies: GPyTorch offers fantasies for Gaussian likelihoods only."""

    seed = 0
    batch_shape = torch.Size([])
    distribution_cls = CollapsedVariationalDistribution
    strategy_cls = CollapsedVariationalStrategy
    mll_cls = Labels
    likelihood_cls = ProbitLikelihood
    test_fantasy_call = test_fantasy_call_batch_inducing = None
    test_fantasy_call_batch_data = test_fantasy_call_batch_model = None


def test_batches_are_computed_one_by_one() -> None:
    """A batch of data sets gives the bounds of each on its own."""
    torch.manual_seed(0)
    x, y = torch.randn(3, 20, 2, dtype=torch.float64), torch.randn(3, 20, dtype=torch.float64)
    points = torch.randn(4, 2, dtype=torch.float64)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    together = CollapsedELBO(likelihood, Plain(points).double(), num_data=20)
    bounds = together(together.model(x), y)
    assert bounds.shape == (3,)
    fresh = Plain(points).double()
    fresh.load_state_dict(together.model.state_dict())
    with torch.no_grad():
        assert torch.equal(fresh.eval()(x).mean, together.model.eval()(x).mean)
    assert together(together.model.train()(x[0]), y[0]).shape == ()
    for place in range(3):
        alone = CollapsedELBO(likelihood, Plain(points).double(), num_data=20)
        assert alone(alone.model(x[place]), y[place]).item() == pytest.approx(bounds[place].item(), rel=1e-12)


def test_a_learned_distribution_is_refused() -> None:
    model = gpytorch.models.ApproximateGP(None)
    learned = gpytorch.variational.CholeskyVariationalDistribution(3)
    with pytest.raises(InputError, match=r"must be a CollapsedVariationalDistribution, or left out. Got CholeskyV"):
        CollapsedVariationalStrategy(model, torch.randn(3, 2), learned)


def test_single_precision_warns_and_says_why(either: Small) -> None:
    either.model.float()
    either.likelihood.float()
    with pytest.warns(PrecisionWarning, match=r"torch.float32.*cancel.*model.double\(\)"):
        either.mll()(either.model(either.indices), either.y)
