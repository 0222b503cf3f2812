"""What the bound refuses, before any computation, and in which words."""

import gpytorch
import numpy as np
import pytest
import torch
from conftest import N, Small, small

from gptf_gpytorch import GPTF, CollapsedELBO, GPTFError, InputError, ProbitLikelihood


def values(**changes: object) -> torch.Tensor:
    y = torch.zeros(N, dtype=torch.float64)
    for place, value in changes.items():
        y[int(place[1:])] = value
    return y


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (values(_3=float("nan")), "Targets must be finite. Got nan at position 3"),
        (values(_7=float("inf")), "Targets must be finite. Got inf at position 7"),
        (torch.zeros(N - 1), rf"one target for each entry. Got {N} entries and \[{N - 1}\] targets"),
        (torch.zeros(N, 1), r"one target for each entry. Got 40 entries and \[40, 1\] targets"),
        (torch.zeros(2, N), r"the model's batch shape \[\] or none. Got \[2, 40\]"),
        (torch.zeros(N, requires_grad=True), "must be data"),
        (torch.zeros(N, dtype=torch.complex64), "must be real. Got torch.complex64"),
        (["a"] * N, "must be a tensor or an array of numbers. Got list"),
        (None, "must be a tensor or an array of numbers. Got NoneType"),
    ],
)
def test_bad_targets(either: Small, y: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        either.mll()(either.model(either.indices), y)


@pytest.mark.parametrize("value", [-1.0, 0.5, 2.0])
def test_labels_other_than_0_and_1(probit: Small, value: float) -> None:
    with pytest.raises(InputError, match=f"must be 0 or 1. Got {value:g} at position 5"):
        probit.mll()(probit.model(probit.indices), values(_5=value))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(3), r"one weight for each entry. Got 40 entries and \[3\] weights"),
        (-torch.ones(N), "finite and at least 0. Got -1 at position 0"),
        (torch.full((N,), float("nan")), "finite and at least 0. Got nan"),
        (torch.ones(N, requires_grad=True), "must be data"),
    ],
)
def test_bad_weights(either: Small, weights: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        either.mll()(either.model(either.indices), either.y, weights=weights)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (torch.zeros(N, 3), "indices must be integers. Got torch.float32"),
        (torch.full((N, 3), -1), r"mode 0 must lie in \[0, 5\). Got -1 at row 0"),
        (torch.full((N, 3), 4), r"mode 1 must lie in \[0, 4\). Got 4 at row 0"),
        (torch.zeros(N, 2, dtype=torch.long), r"must be \[n, 3\].*Got \[40, 2\]"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_bad_indices_in_training_and_prediction(
    either: Small, indices: torch.Tensor, message: str, training: bool
) -> None:
    with pytest.raises(InputError, match=message):
        either.model.train(training)(indices)


def test_bad_input_leaves_nothing_behind(either: Small) -> None:
    before = {name: value.clone() for name, value in either.model.state_dict().items()}
    with pytest.raises(InputError):
        either.mll()(either.model(either.indices), values(_3=float("nan")))
    for name, value in either.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_more_inducing_points_than_entries() -> None:
    model = GPTF(shape=(5, 4), rank=2, num_inducing=30)
    with pytest.raises(InputError, match="Got 30 inducing points for 12 entries: use num_inducing=12 or fewer"):
        CollapsedELBO(ProbitLikelihood(), model, num_data=12)


def test_arrays_and_lists_are_data_too(either: Small) -> None:
    expected = either.mll()(either.model(either.indices), either.y).item()
    for convert in (lambda t: t.numpy(), lambda t: t.tolist()):
        found = either.mll()(either.model(convert(either.indices)), convert(either.y), weights=convert(torch.ones(N)))
        assert found.item() == pytest.approx(expected, rel=1e-12)


def test_the_output_of_another_model_is_refused(either: Small) -> None:
    with pytest.raises(InputError, match="Got another model's"):
        either.mll()(small(False).model(either.indices), either.y)


def test_an_unknown_option_of_a_call_is_refused(either: Small) -> None:
    with pytest.raises(TypeError, match="weight"):
        either.mll()(either.model(either.indices), either.y, weight=torch.ones(N))


@pytest.mark.parametrize("num_inducing", [0, -3, 2.5, True, "3"])
def test_bad_numbers_of_inducing_points(num_inducing: object) -> None:
    with pytest.raises(InputError, match=f"num_inducing must be an integer of at least 1. Got {num_inducing!r}"):
        GPTF(shape=(5, 4), rank=2, num_inducing=num_inducing)


def test_a_wrong_count_is_an_error(either: Small) -> None:
    mll = CollapsedELBO(either.likelihood, either.model, num_data=N + 1)
    with pytest.raises(InputError, match=f"of all workers, {N + 1}. Got {N} entries"):
        mll(either.model(either.indices), either.y)


def test_other_likelihoods_and_strategies_are_refused() -> None:
    model = GPTF(shape=(5, 4), rank=2, num_inducing=3)
    with pytest.raises(InputError, match=r"GaussianLikelihood or a ProbitLikelihood.*Got StudentTLikelihood"):
        CollapsedELBO(gpytorch.likelihoods.StudentTLikelihood(), model, num_data=10)
    with pytest.raises(InputError, match=r"must be a CollapsedVariationalStrategy.*Got VariationalStrategy"):
        CollapsedELBO(ProbitLikelihood(), model.to_svgp(), num_data=10)


def test_moments_of_a_model_in_evaluation_mode_are_refused(either: Small) -> None:
    with pytest.raises(InputError, match=r"in training mode. Got a MultivariateNormal; call model.train\(\)"):
        either.mll()(either.model.eval()(either.indices), either.y)


@pytest.mark.parametrize(
    "options",
    [
        {"num_data": 0},
        {"num_data": "9"},
        {"num_data": 9, "chunk_size": 0},
        {"num_data": 9, "chunk_size": 7.5},
        {"num_data": 9, "lambda_solver": "magic"},
        {"num_data": 9, "lambda_tolerance": -1.0},
        {"num_data": 9, "lambda_tolerance": float("nan")},
        {"num_data": 9, "lambda_passes": 0},
        {"num_data": 9, "path": "magic"},
    ],
)
def test_bad_options(options: dict) -> None:
    with pytest.raises(InputError, match=r"must be .* Got"):
        CollapsedELBO(ProbitLikelihood(), GPTF(shape=(5, 4), rank=2, num_inducing=3), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "rbf"}, "must be GPyTorch's. Got str"),
        ({"kernel": gpytorch.kernels.RBFKernel(ard_num_dims=4)}, "must take the 6 concatenated factors. Got RBFKernel"),
        ({"kernel": gpytorch.kernels.RBFKernel(batch_shape=torch.Size([3]))}, "without batches"),
        ({"mean": gpytorch.means.LinearMean(5)}, "must take the 6 concatenated factors.*LinearMean"),
        ({"shape": 5}, "shape must be integers of at least 1"),
        ({"rank": 2.5}, "rank must be integers of at least 1"),
        ({"rank": None}, "rank must be integers of at least 1"),
    ],
)
def test_bad_models(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        GPTF(**{"shape": (5, 4, 3), "rank": 2, "num_inducing": 3, **options})


def test_numpy_integers_are_integers() -> None:
    model = GPTF(shape=np.array([5, 4]), rank=np.int64(2), num_inducing=np.int64(3))
    assert model.factors.shape == (5, 4)
    assert model(np.array([[4, 3]], dtype=np.uint32)).event_shape == (1,)


def test_labels_of_another_kind_are_refused_by_the_likelihood_too() -> None:
    q = gpytorch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    with pytest.raises(InputError, match="must be 0 or 1"):
        ProbitLikelihood().expected_log_prob(torch.tensor([-1.0, 1.0]), q)


def test_every_error_can_be_caught_as_one_of_ours() -> None:
    with pytest.raises(GPTFError):
        small(False, rank=0)


def test_a_float32_likelihood_is_brought_to_the_models_precision() -> None:
    model, likelihood = GPTF(shape=(5, 4), rank=2, num_inducing=3), gpytorch.likelihoods.GaussianLikelihood()
    noise = likelihood.noise_covar.raw_noise
    assert noise.dtype == torch.float32
    CollapsedELBO(likelihood, model, num_data=10)
    assert likelihood.noise_covar.raw_noise is noise, "an optimiser that holds the parameter must still hold it"
    assert noise.dtype == torch.float64
