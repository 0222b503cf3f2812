"""When q(v) is written, when it is stale, and what survives copies, casts and files."""

import io
import pickle
from copy import deepcopy

import gpytorch
import pytest
import torch
from conftest import Small, small
from trained import CELLS, moments, trained

from gptf_gpytorch import (
    CollapsedELBO,
    InputError,
    ProbitLikelihood,
    StalePosteriorError,
)
from gptf_gpytorch.variational import strategy

# Staleness


def test_one_process_refreshes_by_itself_after_a_step(either: Small) -> None:
    mll = trained(either)
    before = moments(either.model)[0]
    with torch.no_grad():
        for parameter in either.model.parameters():
            parameter.add_(0.1)
    assert either.model.variational_strategy.is_stale
    after = moments(either.model)[0]
    assert not either.model.variational_strategy.is_stale
    assert (after - before).abs().max() > 1e-3
    fresh = deepcopy(either)
    fresh.model.variational_strategy.stamp.zero_()
    again = fresh.mll(lambda_tolerance=1e-11)
    again(fresh.model.train()(fresh.indices), fresh.y).backward()
    torch.testing.assert_close(after, moments(fresh.model)[0], rtol=1e-8, atol=1e-10)
    del mll


@pytest.mark.parametrize("how", ["in place", "through data", "jitter", "lengthscale"])
def test_without_the_data_a_stale_posterior_is_an_error(either: Small, how: str) -> None:
    trained(either)
    model = deepcopy(either.model)  # a copy does not hold the data
    moments(model)
    if how == "in place":
        with torch.no_grad():
            model.factors[0][0, 0] += 1e-3
    elif how == "through data":
        model.factors[0].data[0, 0] += 1e-3
    elif how == "jitter":
        model.variational_strategy.jitter_val = 1e-3
    else:
        model.covar_module.base_kernel.lengthscale = 0.123
    with pytest.raises(StalePosteriorError, match=r"Call mll.refresh\(\) on all workers"):
        model(CELLS)
    with pytest.raises(StalePosteriorError):
        model.to_svgp()


def test_refresh_brings_it_up_to_date_and_needs_an_evaluation_first(either: Small) -> None:
    with pytest.raises(InputError, match="evaluate first"):
        either.mll().refresh()
    mll = trained(either)
    with torch.no_grad():
        either.model.factors[0].mul_(1.1)
    mll.refresh()
    assert not either.model.variational_strategy.is_stale


@pytest.mark.parametrize("how", ["no_grad", "eval"])
def test_a_validation_bound_does_not_write(either: Small, how: str) -> None:
    """Only an evaluation in training mode with gradients may write q(v)."""
    trained(either)
    before = deepcopy(either.model.state_dict())
    fewer = CollapsedELBO(either.likelihood, either.model, num_data=20)
    if how == "no_grad":
        with torch.no_grad():
            fewer(either.model(either.indices[:20]), either.y[:20])
    else:
        output = either.model(either.indices[:20])
        either.model.eval()
        fewer(output, either.y[:20])
    for name, value in either.model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_attaching_a_likelihood_is_not_a_change(gaussian: Small) -> None:
    """Fantasies need model.likelihood."""
    trained(gaussian)
    model = deepcopy(gaussian.model).eval()
    model.likelihood = deepcopy(gaussian.likelihood)
    new = torch.randn(3, 6).double(), torch.randn(3).double()
    assert isinstance(model.get_fantasy_model(*new), gpytorch.models.ExactGP)
    model.factors[0].data.add_(1.0)
    with pytest.raises(StalePosteriorError):
        model.get_fantasy_model(*new)


def test_changing_the_noise_is_a_change(gaussian: Small) -> None:
    """q(v) depends on it: after training of the likelihood alone predictions must not come from the old noise."""
    mll = trained(gaussian)
    before = moments(gaussian.model)[0]
    gaussian.likelihood.noise = 0.001
    assert gaussian.model.variational_strategy.is_stale
    after = moments(gaussian.model)[0]
    mll.refresh()
    assert torch.equal(after, moments(gaussian.model)[0])
    assert (after - before).abs().max() > 1e-4


def test_the_checksum_does_not_depend_on_how_many_numbers_are_taken_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [torch.randn(37, 3, dtype=torch.float64), torch.randn(5, 4).T, torch.randn(()), torch.empty(0)]
    whole = strategy._checksum(numbers)
    monkeypatch.setattr(strategy, "_PLACES", 8)
    assert strategy._checksum(numbers) == whole
    for place in (0, 7, 8, 110):
        other = numbers[0].clone()
        other.view(-1)[place] += 1.0
        assert strategy._checksum([other, *numbers[1:]]) != whole


def test_swapping_two_rows_is_a_change(either: Small) -> None:
    trained(either)
    with torch.no_grad():
        either.model.factors[0].copy_(either.model.factors[0].flip(0))
    assert either.model.variational_strategy.is_stale


# Copies, casts and state


def test_prediction_needs_the_state_dict_alone(either: Small) -> None:
    trained(either)
    expected = moments(either.model)
    buffer = io.BytesIO()
    torch.save(either.model.state_dict(), buffer)
    buffer.seek(0)
    other = small(True, seed=9).model
    other.load_state_dict(torch.load(buffer, weights_only=True))
    for mine, theirs in zip(moments(other), expected, strict=True):
        assert torch.equal(mine, theirs)


def test_the_state_beyond_the_factors_is_p_squared(either: Small) -> None:
    trained(either)
    p, factors = len(either.B), sum(table.numel() for table in either.model.factors.weights)
    held = sum(value.numel() for value in either.model.state_dict().values())
    assert held - factors <= p * p + 20 * p


@pytest.mark.parametrize(
    "copy", [deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"]
)
def test_copies_predict_the_same_and_do_not_hold_the_data(either: Small, copy) -> None:
    mll = trained(either)
    expected = moments(either.model)
    either.model(CELLS).mean.sum().backward()  # a graph in GPyTorch's caches must not prevent a copy
    other = copy(either.model)
    for mine, theirs in zip(moments(other), expected, strict=True):
        assert torch.equal(mine, theirs)
    with torch.no_grad():
        other.factors[0].add_(1.0)
    with pytest.raises(StalePosteriorError):
        other(CELLS)
    assert not either.model.variational_strategy.is_stale, "the original must not notice"
    del mll


def test_the_bound_can_be_pickled_without_its_data(either: Small) -> None:
    mll = trained(either)
    data = either.indices.numel() * 8 + either.y.numel() * 8
    large = small(isinstance(either.likelihood, ProbitLikelihood), n=4000)
    big = trained(large)
    assert len(pickle.dumps(big)) < len(pickle.dumps(mll)) + data
    with pytest.raises(InputError, match="evaluate first"):
        pickle.loads(pickle.dumps(mll)).refresh()


def test_a_change_of_precision_is_not_a_change_of_parameters(either: Small) -> None:
    trained(either)
    either.model = deepcopy(either.model)
    mean, variance = moments(either.model)
    single = moments(either.model.float())
    assert single[0].dtype == torch.float32
    torch.testing.assert_close(single[0].double(), mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(single[1].double(), variance, rtol=0, atol=1e-3)
    back = moments(either.model.double())
    torch.testing.assert_close(back[0], mean, rtol=0, atol=1e-5)


def test_a_model_can_be_moved_to_another_device(either: Small) -> None:
    """The meta device is everywhere: no buffer or parameter may stay behind."""
    trained(either)
    model = deepcopy(either.model).to("meta")
    assert {value.device.type for value in model.state_dict().values()} == {"meta"}
