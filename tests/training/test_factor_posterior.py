"""Runs whose factors have a posterior: trained, saved, resumed and served as any other."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_tensor import make_entries

from gptf_gpytorch import FittedModel, fit
from gptf_gpytorch.data import TensorEntries
from gptf_gpytorch.serving.explain import neighbours, relevance
from gptf_gpytorch.serving.fold_in import fold_in
from gptf_gpytorch.serving.predictions import predict
from gptf_gpytorch.serving.recommend import recommend
from gptf_gpytorch.training.objective import mean_log_density


@pytest.fixture(scope="module")
def fitted() -> FittedModel:
    return fit(make_entries(), rank=2, inducing=30, draws=2, max_iterations=60, validation=0.0).fitted


def test_noisy_entries_are_overfitted_less() -> None:
    entries = make_entries(1200)
    noise = 20.0 * torch.randn(1200, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    entries = replace(entries, values=entries.values + noise)
    train, held_out = entries[:500], entries[500:]
    options = {"rank": 3, "inducing": 30, "max_iterations": 100, "validation": 0.0}
    models = [fit(train, draws=draws, **options).fitted for draws in (0, 2)]
    point, posterior = (mean_log_density(model.mll, held_out, model.scaling) for model in models)
    assert posterior > point + 0.02


def test_an_entity_without_entries_keeps_the_prior() -> None:
    entries = make_entries()
    train = entries[entries.indices[:, 0] != 4]
    factors = fit(train, rank=2, inducing=20, draws=2, max_iterations=30, validation=0.0).fitted.model.factors
    assert torch.equal(factors[0][4].detach(), torch.zeros(2, dtype=torch.float64))
    deviations = factors.log_deviations[0].detach().exp()
    assert torch.equal(deviations[4], torch.ones(2, dtype=torch.float64))
    assert float(deviations[:4].max()) < 0.9


def test_it_is_saved_and_loaded(fitted: FittedModel, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    again, cells = FittedModel.load(tmp_path / "model"), make_entries().indices
    assert torch.equal(predict(again, cells).mean, predict(fitted, cells).mean)
    assert torch.equal(predict(again, cells).std, predict(fitted, cells).std)


def test_a_resumed_run_ends_at_the_same_bits(tmp_path: Path) -> None:
    entries, options = make_entries(), {"rank": 2, "inducing": 15, "draws": 2, "validation": 0.0}
    whole = fit(entries, **options, max_iterations=24).fitted
    fit(entries, **options, max_iterations=21, output=tmp_path)
    resumed = fit(entries, **options, max_iterations=24, output=tmp_path, resume=True).fitted
    for name, tensor in whole.mll.state_dict().items():
        assert torch.equal(tensor, resumed.mll.state_dict()[name]), name


def test_new_entities_get_a_posterior(fitted: FittedModel) -> None:
    """A user who is told again as somebody new is described alike; one of whom nothing is told has the prior."""
    entries = make_entries()
    mine = entries[entries.indices[:, 0] == 3]
    cells = mine.indices.clone()
    cells[:, 0] = 15
    wider = fold_in(fitted, TensorEntries(cells, mine.values, (17, 12, 10), entries.names))
    factors = wider.model.factors
    assert wider.shape == (17, 12, 10)
    torch.testing.assert_close(predict(wider, cells).mean, predict(fitted, mine).mean, rtol=0, atol=4.0)
    assert float((predict(wider, cells).mean - mine.values).square().mean().sqrt()) < 0.4 * float(mine.values.std())
    deviations = factors.log_deviations[0].detach().exp()
    assert float(deviations[15].min()) < 0.5
    assert torch.equal(deviations[16], torch.ones(2, dtype=torch.float64))
    assert torch.equal(factors[0][16].detach(), torch.zeros(2, dtype=torch.float64))
    known = entries.indices[:20]
    assert torch.equal(predict(wider, known).mean, predict(fitted, known).mean)


def test_it_is_recommended_and_explained(fitted: FittedModel) -> None:
    assert sum(relevance(fitted).values()) == pytest.approx(1.0)
    assert len(neighbours(fitted, "user", 3, top=4)) == 4
    best = recommend(fitted, {"user": 3}, mode="item", top=3)  # averaged over days
    cells = torch.cartesian_prod(torch.tensor([3]), torch.tensor([best[0].id]), torch.arange(10))
    assert best[0].mean == pytest.approx(float(predict(fitted, cells).mean.mean()))
    given = recommend(fitted, {"user": 3, "day": 2}, mode="item", top=1)
    assert given[0].mean == pytest.approx(float(predict(fitted, [[3, given[0].id, 2]]).mean))


def test_an_older_model_without_the_option_is_loaded(fitted: FittedModel) -> None:
    values = replace(fitted.config, draws=0).to_dict()
    del values["draws"]
    assert type(fitted.config).from_dict(values).draws == 0
