"""The peers of the benchmarks compute what we compute: the same bound and the same gradient."""

import importlib

import common
import gpytorch
import peers
import pytest
import torch

from gptf_gpytorch import CollapsedELBO

ALL = {**peers.TORCH, **{name: peer for name, (peer, _) in peers.OPTIONAL.items()}}
# The others' sums are in another order, or with K_BB inverted.
TOLERANCES = {"naive autograd": 1e-9}
# Not ours to mend: what importing TensorFlow and its companions warns of.
FOREIGN = pytest.mark.filterwarnings("ignore")


def problem(jitter: float = 1e-6) -> tuple[CollapsedELBO, torch.Tensor, torch.Tensor]:
    """A tiny problem away from the start, in more than one chunk, with every parameter off its default."""
    shape = (6, 5, 4)
    indices, y = common.entries(150, shape=shape)
    mll = common.problem(indices, y, 8, rank=2, shape=shape, chunk_size=64)
    mll.strategy.jitter_val = jitter
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in mll.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return mll, indices, y


def skip_without(name: str) -> None:
    for module in peers.OPTIONAL[name][1] if name in peers.OPTIONAL else ():
        pytest.importorskip(module, reason=f"{name} needs the extra peers: pip install -e '.[peers]'")


@pytest.mark.parametrize("name", [*peers.TORCH, *(pytest.param(name, marks=FOREIGN) for name in peers.OPTIONAL)])
@pytest.mark.parametrize("jitter", [1e-6, 1e-3])
def test_a_peer_has_our_bound_and_our_gradient(name: str, jitter: float) -> None:
    skip_without(name)
    mll, indices, y = problem(jitter)
    run = ALL[name](mll, indices, y)
    found = peers.detached(run())
    bound, gradient = peers.difference(found, peers.detached(peers.ours(mll, indices, y)()))
    assert bound < TOLERANCES.get(name, 1e-8)
    assert gradient < TOLERANCES.get(name, 1e-6)
    assert run().bound == pytest.approx(found.bound, rel=1e-12), "gradients or sums of the last evaluation were kept"


def test_a_difference_is_seen() -> None:
    mll, indices, y = problem()
    found = peers.detached(peers.naive(mll, indices, y)())
    with torch.no_grad():
        mll.model.factors[1][2, 0] += 1e-4
    bound, gradient = peers.difference(found, peers.ours(mll, indices, y)())
    assert bound > 1e-7
    assert gradient > 1e-6


def test_naive_has_the_gradient_of_every_parameter() -> None:
    mll, indices, y = problem()
    peers.naive(mll, indices, y)()
    expected = {name: parameter.grad.clone() for name, parameter in mll.named_parameters()}
    peers.ours(mll, indices, y)()
    for name, parameter in mll.named_parameters():
        assert (parameter.grad - expected[name]).norm() < 1e-9 * expected[name].norm(), name


def test_stock_sgpr_is_the_bound_without_the_factors_prior() -> None:
    """The peer gives GPyTorch's SGPR our jitter; untouched, it has our bound as our jitter goes to 0."""
    mll, indices, y = problem(jitter=0.0)
    x = mll.model.factors(indices).detach()
    kernel = gpytorch.kernels.InducingPointKernel(
        mll.model.covar_module, mll.strategy.inducing_points.detach(), mll.likelihood
    )

    class SGPR(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(x, y, mll.likelihood)
            self.covar_module = kernel

        def forward(self, inputs: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(torch.zeros(len(inputs)).double(), kernel(inputs))

    model = SGPR().train()
    with torch.no_grad():
        stock = gpytorch.mlls.ExactMarginalLogLikelihood(mll.likelihood, model)(model(x), y)
        prior = mll.model.factors.log_prior() / len(y)
    assert (stock + prior).item() == pytest.approx(peers.ours(mll, indices, y)().bound, rel=1e-6)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = importlib.import_module

    def refuse(name: str) -> object:
        if name in ("tensorflow", "jax"):
            raise ModuleNotFoundError(name)
        return imported(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    found, missing = peers.available()
    assert list(found) == list(peers.TORCH)
    assert missing == list(peers.OPTIONAL)
