"""Prediction, deferral and export: what a collapsed strategy returns, and when."""

import gpytorch
import numpy as np
import pytest
import reference
import torch
from conftest import Small, small
from trained import CELLS, moments, trained

from gptf_gpytorch import (
    CollapsedVariationalStrategy,
    InputError,
    ProbitLikelihood,
    to_svgp,
)
from gptf_gpytorch.errors import DeferredPosteriorError

# Prediction


def test_predictions_equal_the_papers_posterior(either: Small) -> None:
    """The moments of q(v) as the paper prints them, and f given v the textbook way."""
    trained(either)
    strategy = either.model.variational_strategy
    values = (either.X, either.B, either.k, either.y.numpy())
    K_BB, A1, _, _, a4, _ = reference.statistics(*values, strategy.jitter_val)
    if isinstance(either.likelihood, ProbitLikelihood):
        m, beta = K_BB @ strategy.lam.numpy(), 1.0
    else:
        beta = 1.0 / either.likelihood.noise.item()
        m = beta * K_BB @ np.linalg.solve(K_BB + beta * A1, a4)
    C = K_BB @ np.linalg.solve(K_BB + beta * A1, K_BB)
    mean, variance = moments(either.model)
    for place, index in enumerate(CELLS.tolist()):
        x = reference.concatenate(either.U, index)
        expected_mean, expected_variance = reference.predict(x, either.B, either.k, m, C, strategy.jitter_val)
        assert mean[place].item() == pytest.approx(expected_mean, rel=1e-8)
        # GPyTorch adds the jitter to the variance of f, too.
        assert variance[place].item() == pytest.approx(expected_variance + strategy.jitter_val, rel=1e-8)


def test_q_is_the_optimum_of_the_uncollapsed_bound(gaussian: Small) -> None:
    """GPyTorch's own ELBO of the exported SVGP equals the collapsed bound, and any change of q lowers it."""
    mll = trained(gaussian)
    n = len(gaussian.y)
    collapsed = sum(term.item() for name, term in mll.terms.items() if name != "factor_prior") / n
    svgp = gaussian.model.to_svgp().train()
    elbo = gpytorch.mlls.VariationalELBO(gaussian.likelihood, svgp, num_data=n)
    best = elbo(svgp(gaussian.indices), gaussian.y).item()
    assert best == pytest.approx(collapsed, rel=1e-5)
    generator = torch.Generator().manual_seed(0)
    for parameter in svgp.variational_strategy._variational_distribution.parameters():
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
        svgp.variational_strategy._clear_cache()
        assert elbo(svgp(gaussian.indices), gaussian.y).item() < best
        with torch.no_grad():
            parameter.copy_(before)


def test_an_untrained_model_predicts_the_prior(either: Small) -> None:
    q = either.model.eval()(CELLS)
    assert q.mean.abs().max() == 0
    torch.testing.assert_close(q.variance, either.model.covar_module.outputscale.expand(3), rtol=1e-5, atol=1e-5)


def test_prior_mode_returns_the_prior(either: Small) -> None:
    trained(either)
    prior = either.model(CELLS, prior=True)
    torch.testing.assert_close(
        prior.covariance_matrix, either.model.covar_module(either.model.factors(CELLS)).to_dense()
    )


# Deferral


def test_in_training_mode_moments_are_refused_and_shapes_are_known(either: Small) -> None:
    output = either.model.train()(either.indices)
    assert output.inputs is either.indices, "nothing may be gathered yet"
    assert output.event_shape == (40,)
    assert output.batch_shape == ()
    assert "event_shape=(40,)" in repr(output)
    for use in ("mean", "loc", "variance", "stddev", "covariance_matrix", "lazy_covariance_matrix"):
        with pytest.raises(DeferredPosteriorError, match=r"CollapsedELBO.*model.eval\(\)"):
            getattr(output, use)
    with pytest.raises(DeferredPosteriorError):
        either.likelihood(output)
    with pytest.raises(DeferredPosteriorError):
        output.rsample()
    with pytest.raises(DeferredPosteriorError):
        output.log_prob(either.y)


# Export


def test_the_exported_svgp_is_stock_and_predicts_the_same(either: Small) -> None:
    trained(either)
    svgp = either.model.to_svgp()
    assert type(svgp.variational_strategy) is gpytorch.variational.VariationalStrategy
    cells = torch.cartesian_prod(*(torch.arange(d) for d in either.model.factors.shape))
    with torch.no_grad():
        mine, theirs = either.model.eval()(cells), svgp.eval()(cells)
        torch.testing.assert_close(mine.mean, theirs.mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(mine.variance, theirs.variance, rtol=0, atol=1e-6)
        full = either.likelihood(mine).mean
        torch.testing.assert_close(full, either.likelihood(theirs).mean, rtol=0, atol=1e-6)


def test_a_stock_svgp_loads_the_state(either: Small) -> None:
    """Names and shapes are GPyTorch's: a model with the stock strategy takes the state dict as it is."""
    trained(either)
    state = {k: v for k, v in either.model.state_dict().items() if k.rpartition(".")[2] not in ("stamp", "jitter")}
    stock = small(True, seed=3).model.to_svgp()
    stock.load_state_dict(state)
    stock.variational_strategy.jitter_val = either.model.variational_strategy.jitter_val
    with torch.no_grad():
        torch.testing.assert_close(stock.eval()(CELLS).mean, moments(either.model)[0])


def test_the_export_learns_inducing_points_only_if_the_source_did() -> None:
    for learn in (True, False):
        model = gpytorch.models.ApproximateGP(None)
        model.variational_strategy = CollapsedVariationalStrategy(
            model, torch.randn(3, 2), learn_inducing_locations=learn
        )
        names = [name for name, _ in to_svgp(model).named_parameters()]
        assert ("variational_strategy.inducing_points" in names) is learn
        with pytest.raises(InputError, match="Got VariationalStrategy"):
            to_svgp(to_svgp(model))


def test_the_exported_svgp_trains_further_with_another_likelihood(gaussian: Small) -> None:
    trained(gaussian)
    svgp = gaussian.model.to_svgp().train()
    likelihood = gpytorch.likelihoods.StudentTLikelihood().double()
    elbo = gpytorch.mlls.VariationalELBO(likelihood, svgp, num_data=len(gaussian.y))
    optimizer = torch.optim.Adam([*svgp.parameters(), *likelihood.parameters()], lr=0.02)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = -elbo(svgp(gaussian.indices), gaussian.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert not gaussian.model.variational_strategy.is_stale, "the source must not change with its export"
