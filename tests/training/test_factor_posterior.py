"""Runs whose factors have a posterior: trained, saved, resumed and served as any other."""

import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from small_tensor import make_entries

from gptf_gpytorch import FittedModel, InterruptedRunError, NumericalError, TrainConfig, fit
from gptf_gpytorch.data import TensorEntries
from gptf_gpytorch.serving.explain import neighbours, relevance
from gptf_gpytorch.serving.fold_in import fold_in
from gptf_gpytorch.serving.predictions import predict
from gptf_gpytorch.serving.recommend import recommend
from gptf_gpytorch.training.objective import BoundObjective, mean_log_density
from gptf_gpytorch.training.saved import build
from gptf_gpytorch.variational.elbo import CollapsedELBO
from gptf_gpytorch.variational.evaluation import default_tolerance


@pytest.fixture(scope="module")
def fitted() -> FittedModel:
    return fit(make_entries(), method="paper", rank=2, inducing=30, draws=2, max_iterations=60, validation=0.0).fitted


def test_noisy_entries_are_overfitted_less() -> None:
    entries = make_entries(1200)
    noise = 20.0 * torch.randn(1200, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    entries = replace(entries, values=entries.values + noise)
    train, held_out = entries[:500], entries[500:]
    options = {"method": "paper", "rank": 3, "inducing": 30, "max_iterations": 100, "validation": 0.0}
    models = [fit(train, draws=draws, **options).fitted for draws in (0, 2)]
    point, posterior = (mean_log_density(model.mll, held_out, model.scaling) for model in models)
    assert posterior > point + 0.02


def test_an_entity_without_entries_keeps_the_prior() -> None:
    entries = make_entries()
    train = entries[entries.indices[:, 0] != 4]
    fitted = fit(train, method="paper", rank=2, inducing=20, draws=2, max_iterations=30, validation=0.0).fitted
    factors = fitted.model.factors
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
    entries, options = make_entries(), {"method": "paper", "rank": 2, "inducing": 15, "draws": 2, "validation": 0.0}
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


def test_an_older_model_without_the_options_is_loaded(fitted: FittedModel) -> None:
    values = replace(fitted.config, draws=0).to_dict()
    del values["draws"], values["biases"]
    older = type(fitted.config).from_dict(values)
    assert (older.draws, older.biases) == (0, False)


ANEW = {
    "method": "paper",
    "rank": 2,
    "inducing": 20,
    "draws": 1,
    "optimizer": "adam",
    "learning_rate": 0.1,
    "validation": 0.0,
}


def test_adam_draws_anew_in_every_step_and_keeps_the_last_state() -> None:
    entries = make_entries()
    result = fit(entries, **ANEW, max_iterations=30, tolerance=0.5)
    bounds = [step.bound for step in result.history.steps]
    assert result.reason == "30 steps were taken"  # chance must not end it
    assert any(after < before for before, after in pairwise(bounds[-10:]))
    assert result.history.kept.iteration == 30
    assert result.bound == pytest.approx(bounds[-1], rel=1e-12)
    # The bound over the draws that the last step was trained with says what it is over others.
    mll = result.fitted.mll
    others = []
    for turn in range(100, 110):
        mll.turn = turn
        with torch.no_grad():
            others.append(mll(mll.model.train()(entries.indices), result.fitted.scaling.scaled(entries.values)).item())
    others = torch.tensor(others)
    assert others.std() > 0
    assert abs(bounds[-1] - float(others.mean())) < 5.0 * float(others.std())


def test_fixed_draws_are_fitted_and_new_ones_are_not() -> None:
    """Labels that are pure chance: what is more likely than that was learned from draws that stay."""
    generator = torch.Generator().manual_seed(1)
    indices = torch.stack([torch.randint(d, (300,), generator=generator) for d in (150, 150, 150)], dim=1)
    entries = TensorEntries(indices, (torch.rand(300, generator=generator) < 0.5).double(), (150, 150, 150))
    options = {
        "method": "paper",
        "likelihood": "probit",
        "rank": 3,
        "inducing": 30,
        "draws": 1,
        "validation": 0.0,
        "max_iterations": 150,
    }
    fixed = fit(entries, **options).fitted.mll
    anew = fit(entries, **options, optimizer="adam", learning_rate=0.1).fitted.mll
    gaps = []
    for mll in (fixed, anew):
        bounds = []
        for turn in (mll.turn, 1001, 1002, 1003):
            mll.turn = turn
            with torch.no_grad():
                bounds.append(mll(mll.model.train()(indices), entries.values).item())
        gaps.append(bounds[0] - max(bounds[1:]))
    assert gaps[0] > 0.05
    assert abs(gaps[1]) < 0.02


def test_steps_that_draw_anew_solve_lambda_roughly_and_the_end_does_well(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = make_entries()
    entries = replace(entries, values=(entries.values > entries.values.median()).double())
    original, norms = BoundObjective.__call__, []

    def looking(self: BoundObjective, x: torch.Tensor) -> Any:
        found = original(self, x)
        norms.append((self.turn, self.mll.solution.gradient_norm))
        return found

    monkeypatch.setattr(BoundObjective, "__call__", looking)
    result = fit(entries, **ANEW, likelihood="probit", max_iterations=30)
    steps = [norm for turn, norm in norms if turn > 0]
    strict = default_tolerance(len(entries), torch.float64)
    assert result.fitted.mll.solution.gradient_norm <= strict  # of the evaluation that writes the q(v) that is kept
    assert strict < max(steps) <= 1e-3 * len(entries) ** 0.5
    assert result.bound == pytest.approx(result.history.steps[-1].bound, abs=1e-5)


@pytest.mark.parametrize("likelihood", ["gaussian", "probit"])
def test_a_run_that_draws_anew_is_resumed_at_the_same_bits(
    likelihood: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = make_entries()
    if likelihood == "probit":
        entries = replace(entries, values=(entries.values > entries.values.median()).double())
    options = {**ANEW, "likelihood": likelihood, "biases": True, "max_iterations": 12}
    whole = fit(entries, **options).fitted
    original = BoundObjective.__call__

    def interrupting(self: BoundObjective, x: torch.Tensor) -> Any:
        if self.turn == 7:  # of the steps that draw anew
            signal.raise_signal(signal.SIGTERM)
        return original(self, x)

    monkeypatch.setattr(BoundObjective, "__call__", interrupting)
    with pytest.raises(InterruptedRunError, match="after step 6"):
        fit(entries, output=tmp_path, **options)
    monkeypatch.undo()
    resumed = fit(entries, output=tmp_path, resume=True, **options).fitted
    again = fit(entries, output=tmp_path, resume=True, **options).fitted  # no step is left to take
    for name, tensor in whole.mll.state_dict().items():
        assert torch.equal(tensor, resumed.mll.state_dict()[name]), name
        assert torch.equal(tensor, again.mll.state_dict()[name]), name
    assert whole.history.kept == resumed.history.kept == again.history.kept


@pytest.fixture(scope="module", params=[0, 2], ids=["point estimates", "draws"])
def biased(request: pytest.FixtureRequest) -> FittedModel:
    options = {"method": "paper", "rank": 2, "inducing": 30, "max_iterations": 60, "validation": 0.0}
    return fit(make_entries(), **options, draws=request.param, biases=True).fitted


def test_biases_find_what_is_a_sum_of_entities() -> None:
    """Sums of one number an entity, from some 6 entries of each."""
    generator = torch.Generator().manual_seed(0)
    hidden = [torch.randn(d, generator=generator, dtype=torch.float64) for d in (100, 90, 80)]
    indices = torch.stack([torch.randint(len(h), (1200,), generator=generator) for h in hidden], dim=1)
    y = sum(h[indices[:, mode]] for mode, h in enumerate(hidden))
    y = y + torch.randn(1200, generator=generator, dtype=torch.float64)
    entries = TensorEntries(indices, y, (100, 90, 80))
    train, test = entries[:600], entries[600:]
    with_biases, without = (fit(train, **ANEW, max_iterations=150, biases=biases).fitted for biases in (True, False))
    errors = [
        float((predict(model, test).mean - test.values).square().mean().sqrt()) for model in (with_biases, without)
    ]
    assert errors[0] < 0.8 * float(test.values.std())
    assert errors[0] < errors[1]
    scales = [float(variance.detach().sqrt()) for variance in with_biases.model.factors.bias_variances()]
    assert all(0.4 < scale * with_biases.scaling.spread < 1.6 for scale in scales), scales


def test_biases_are_saved_loaded_and_recommended(biased: FittedModel, tmp_path: Path) -> None:
    biased.save(tmp_path / "model")
    again, cells = FittedModel.load(tmp_path / "model"), make_entries().indices
    assert torch.equal(predict(again, cells).mean, predict(biased, cells).mean)
    assert torch.equal(predict(again, cells).std, predict(biased, cells).std)
    best = recommend(biased, {"user": 3}, mode="item", top=3)  # averaged over days
    cells = torch.cartesian_prod(torch.tensor([3]), torch.tensor([best[0].id]), torch.arange(10))
    assert best[0].mean == pytest.approx(float(predict(biased, cells).mean.mean()))
    # who is not known has the prior's bias
    unknown = predict(biased, [[-1, 2, 3]]).latent.variance
    variance = biased.model.covar_module.outputscale + sum(biased.model.factors.bias_variances())
    assert float(unknown) == pytest.approx(variance.item())


def test_new_entities_get_a_bias(biased: FittedModel) -> None:
    entries = make_entries()
    mine = entries[entries.indices[:, 0] == 3]
    cells = mine.indices.clone()
    cells[:, 0] = 15
    wider = fold_in(biased, TensorEntries(cells, mine.values, (17, 12, 10), entries.names))
    factors = wider.model.factors
    assert float((predict(wider, cells).mean - mine.values).square().mean().sqrt()) < 0.4 * float(mine.values.std())
    variance = biased.model.factors.bias_variances()[0].detach()
    torch.testing.assert_close(factors.biases[0][15], factors.biases[0][3], rtol=0, atol=2.0 * float(variance.sqrt()))
    assert factors.log_bias_deviations[0][15].item() < float(0.5 * variance.log())
    # of whom nothing is told
    assert factors.biases[0][16].item() == 0.0
    assert factors.log_bias_deviations[0][16].item() == pytest.approx(float(0.5 * variance.log()))
    known = entries.indices[:20]
    assert torch.equal(predict(wider, known).mean, predict(biased, known).mean)


def test_a_warm_up_lets_the_divergence_grow_to_its_whole_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    original, weights = BoundObjective.__call__, []

    def looking(self: BoundObjective, x: torch.Tensor) -> Any:
        found = original(self, x)
        if self.turn:
            weights.append((self.turn, self.mll.prior_weight, float(self.mll.terms["factor_prior"])))
        return found

    monkeypatch.setattr(BoundObjective, "__call__", looking)
    result = fit(make_entries(), **ANEW, max_iterations=20, warmup=0.5)
    [*steps, (_, last, prior)] = weights
    assert [weight for _, weight, _ in steps] == pytest.approx([0.05 + 0.095 * min(turn, 10) for turn, _, _ in steps])
    assert last == 1.0
    assert prior == pytest.approx(float(result.fitted.model.factors.log_prior().detach()))
    plain = fit(make_entries(), **ANEW, max_iterations=20)
    assert result.bound != plain.bound
    # Stopped on the way, the model that is kept has a bound all the same.
    monkeypatch.setattr(TrainConfig, "prior_weight", lambda *_: 0.1)
    stopped = fit(make_entries(), **ANEW, max_iterations=5)
    assert stopped.bound < stopped.history.steps[-1].bound
    assert stopped.fitted.mll.prior_weight == 1.0


def test_batches_are_parts_of_the_entries_that_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = make_entries()
    seen: list[tuple[int, int | None, list[list[int]], float]] = []
    original = CollapsedELBO.forward

    def looking(self: CollapsedELBO, output: Any, target: torch.Tensor, *, weights: torch.Tensor | None = None) -> Any:
        total = float(len(target) if weights is None else weights.sum())
        seen.append((self.turn, self.sample, output.inputs.tolist(), total))
        return original(self, output, target, weights=weights)

    monkeypatch.setattr(CollapsedELBO, "forward", looking)
    result = fit(entries, **ANEW, max_iterations=8, batch=len(entries) // 4)
    steps = [(sample, cells, total) for turn, sample, cells, total in seen if turn]
    last, steps = steps[-1], steps[:8]
    assert last[0] is None  # the model that is kept knows of all entries
    assert sorted(last[1]) == sorted(entries.indices.tolist())
    for sample, cells, total in steps:
        assert sample == len(cells)
        assert 0.15 * len(entries) < sample < 0.35 * len(entries)
        assert total == pytest.approx(len(entries))
    once = [cell for _, cells, _ in steps[:4] for cell in cells]
    assert sorted(once) == sorted(entries.indices.tolist())
    assert [cells for _, cells, _ in steps[4:]] == [cells for _, cells, _ in steps[:4]]
    assert result.fitted.mll.num_data == len(entries)
    # So do the steps of L-BFGS before the first one, and where that begins: all with the part before the first.
    assert all(cells == steps[3][1] for turn, _, cells, _ in seen if not turn)


def test_batches_find_what_all_entries_find() -> None:
    entries = make_entries()
    options = {**ANEW, "inducing": 30, "max_iterations": 300}
    whole, parts = (fit(entries, **options, batch=batch).bound for batch in (0, len(entries) // 4))
    assert parts > whole - 0.1


def test_batches_are_the_same_on_any_number_of_workers() -> None:
    from workers import ThreadCommunicator, Workers

    entries = make_entries()
    config = TrainConfig(method="paper", rank=2, inducing=20)

    def value(communicator: Any, rows: slice) -> list[float]:
        mll = build(config, entries.shape, len(entries), communicator)
        objective = BoundObjective(mll, entries.indices[rows], entries.values[rows], None, 100)
        found = []
        for part in range(objective.parts):
            objective.part = part
            found.append(objective(objective.vector()).value)
        return found

    alone = value(None, slice(None))
    assert len(set(alone)) == round(len(entries) / 100)

    def job(communicator: ThreadCommunicator) -> list[float]:
        return value(communicator, [slice(0, 150), slice(150, None)][communicator.rank])

    for found in Workers(2).run(job):
        assert found == pytest.approx(alone, rel=1e-10)


def test_entries_of_few_cells_make_fewer_parts() -> None:
    """The cells of a part go together, however often they are there."""
    generator = torch.Generator().manual_seed(0)
    cells = torch.stack([torch.randint(3, (400,), generator=generator) for _ in range(2)], dim=1)
    entries = TensorEntries(cells, torch.randn(400, generator=generator, dtype=torch.float64), (3, 3))
    options = {**ANEW, "inducing": 5, "max_iterations": 30}
    assert fit(entries, **options, batch=20).reason == "30 steps were taken"


def test_several_starts_leave_the_steps_of_the_run_as_long_as_they_are() -> None:
    options = {**ANEW, "biases": True, "max_iterations": 60}
    one, three = (fit(make_entries(), **options, restarts=restarts) for restarts in (1, 3))
    assert three.bound > one.bound - 0.1


def test_a_rollback_goes_to_the_entries_and_the_weight_of_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    original, seen = BoundObjective.__call__, []

    def failing(self: BoundObjective, x: torch.Tensor) -> Any:
        seen.append((self.turn, self.part, self.mll.prior_weight))
        if [turn for turn, _, _ in seen].count(4) == 1 and self.turn == 4:
            raise NumericalError("made up")
        return original(self, x)

    monkeypatch.setattr(BoundObjective, "__call__", failing)
    fit(make_entries(), **ANEW, max_iterations=5, warmup=1.0, batch=300)
    at = [turn for turn, _, _ in seen].index(4)
    assert seen[at + 1] == seen[at - 1] == (3, 2, pytest.approx(0.62))
    assert seen[at + 2] == seen[at]
