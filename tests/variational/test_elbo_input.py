"""What the bound refuses, before any computation, and in which words."""

import gpytorch
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
        (torch.ones(3), r"one weight for each entry. Got 40 entries, \[3\] weights"),
        (-torch.ones(N), "finite and at least 0"),
        (torch.full((N,), float("nan")), "finite and at least 0"),
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


@pytest.mark.parametrize("num_inducing", [0, -3, 2.5])
def test_bad_numbers_of_inducing_points(num_inducing: object) -> None:
    with pytest.raises(InputError, match=f"num_inducing must be an integer of at least 1. Got {num_inducing}"):
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
    "options", [{"num_data": 0}, {"num_data": 9, "chunk_size": 0}, {"num_data": 9, "lambda_solver": "magic"}]
)
def test_bad_options(options: dict) -> None:
    with pytest.raises(InputError, match=r"must be .* Got"):
        CollapsedELBO(ProbitLikelihood(), GPTF(shape=(5, 4), rank=2, num_inducing=3), **options)


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
