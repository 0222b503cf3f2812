"""Collapsed regression and classification with plain inputs."""

import gpytorch
import pytest
import torch
from plain import Plain

from gptf_gpytorch import (
    CollapsedELBO,
    InputError,
    ProbitLikelihood,
)

# Plain inputs


def fit(model: Plain, likelihood: gpytorch.likelihoods.Likelihood, x: torch.Tensor, y: torch.Tensor) -> CollapsedELBO:
    mll = CollapsedELBO(likelihood, model, num_data=len(y))
    optimizer = torch.optim.LBFGS([*model.parameters(), *likelihood.parameters()], line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = -mll(model.train()(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    mll.refresh()
    return mll


def test_collapsed_regression_with_plain_inputs() -> None:
    torch.manual_seed(0)
    x = torch.linspace(0, 6, 200, dtype=torch.float64).unsqueeze(-1)
    y = torch.sin(x).squeeze(-1) + 0.1 * torch.randn(200, dtype=torch.float64)
    model, likelihood = Plain(x[::20].clone()).double(), gpytorch.likelihoods.GaussianLikelihood()
    fit(model, likelihood, x, y)
    new = torch.linspace(0.3, 5.7, 30, dtype=torch.float64)
    with torch.no_grad():
        prediction = likelihood(model.eval()(new))
    assert (prediction.mean - torch.sin(new)).abs().max() < 0.1
    assert likelihood.noise.item() == pytest.approx(0.01, rel=0.4)
    assert prediction.variance.mean().item() == pytest.approx(0.01, rel=0.5)


def test_collapsed_probit_classification_with_plain_inputs() -> None:
    torch.manual_seed(0)
    x = 4 * torch.rand(400, 2, dtype=torch.float64) - 2
    truth = torch.special.ndtr(3 * (x[:, 0] * x[:, 1]))
    y = (torch.rand(400) < truth).double()
    model, likelihood = Plain(x[:25].clone()).double(), ProbitLikelihood()
    fit(model, likelihood, x[:300], y[:300])
    with torch.no_grad():
        probability = likelihood(model.eval()(x[300:])).probs
    accuracy = ((probability > 0.5) == (truth[300:] > 0.5)).double().mean()
    assert accuracy > 0.85


def test_inputs_may_come_from_a_network() -> None:
    """A deep kernel: the gradient reaches whatever made the inputs."""
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 2).double()
    data, y = torch.randn(30, 3, dtype=torch.float64), torch.randn(30, dtype=torch.float64)
    model, likelihood = (
        Plain(torch.randn(5, 2, dtype=torch.float64)).double(),
        gpytorch.likelihoods.GaussianLikelihood(),
    )
    mll = CollapsedELBO(likelihood, model, num_data=30, chunk_size=7)

    def bound(*_: torch.Tensor) -> torch.Tensor:
        return mll(model(network(data)), y) * 30

    assert torch.autograd.gradcheck(bound, list(network.parameters()), eps=1e-6, atol=1e-5)
    with pytest.raises(InputError, match="not made by a network"):
        mll.refresh()  # the inputs that were held would be those of the old network


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.full((30, 2), float("nan"), dtype=torch.float64), "Inputs must be finite"),
        (torch.zeros(30, 3, dtype=torch.float64), r"the 2 dimensions of the inducing points. Got \[30, 3\]"),
        (torch.zeros(30, 2, dtype=torch.long), "must be floating point. Got torch.int64"),
    ],
)
def test_bad_plain_inputs(x: torch.Tensor, message: str) -> None:
    model = Plain(torch.randn(5, 2, dtype=torch.float64)).double()
    mll = CollapsedELBO(gpytorch.likelihoods.GaussianLikelihood(), model, num_data=30)
    with pytest.raises(InputError, match=message):
        mll(model(x), torch.zeros(30))


def test_single_precision_inputs_do_not_make_the_bound_single_precision() -> None:
    torch.manual_seed(0)
    model = Plain(torch.randn(5, 2, dtype=torch.float64)).double()
    x, y = torch.randn(30, 2), 1e6 + torch.randn(30, dtype=torch.float64)
    mll = CollapsedELBO(gpytorch.likelihoods.GaussianLikelihood(), model, num_data=30)
    assert mll(model(x), y).item() == mll(model(x.double()), y).item()
