"""The default method: a race and a long run, resumed to the bit, on several workers, and where there is little to learn."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from workers import ThreadCommunicator, Workers

from gptf_gpytorch import DataWarning, FittedModel, InputError, TensorEntries, fit
from gptf_gpytorch.errors import CheckpointError, InterruptedRunError
from gptf_gpytorch.serving.explain import neighbours, shares
from gptf_gpytorch.serving.fold_in import fold_in
from gptf_gpytorch.serving.metrics import evaluate
from gptf_gpytorch.serving.predictions import predict
from gptf_gpytorch.serving.recommend import recommend
from gptf_gpytorch.tracking.tracker import Tracker
from gptf_gpytorch.training import recipe
from gptf_gpytorch.training.sampled_model import SampledModel

# Few runners and few sweeps: what is tested is not how good they are.
SMALL: dict[str, Any] = {"effort": "quick", "pairs": 1, "products": 1, "sweeps": 9, "samples": 3}


def tensor(
    shape: tuple[int, ...] = (8, 7, 6), count: int = 200, *, binary: bool = False, seed: int = 0
) -> TensorEntries:
    """Entries of a sum of biases and a product of factors."""
    generator = np.random.default_rng(seed)
    cells = generator.permutation(int(np.prod(shape)))[:count]
    indices = np.stack(np.unravel_index(cells, shape), axis=1)
    rows = [generator.normal(size=(size, 2)) for size in shape]
    parts = [table[column] for table, column in zip(rows, indices.T, strict=True)]
    f = sum(part[:, 0] for part in parts) + np.prod([part[:, 1] for part in parts], axis=0)
    f = f + 0.1 * generator.normal(size=len(f))
    return TensorEntries(indices, (f > 0).astype(float) if binary else 10 + 3 * f, shape)


@pytest.fixture(scope="module")
def fitted() -> SampledModel:
    return fit(tensor(), **SMALL, counts=True).fitted


@pytest.fixture(scope="module")
def labels() -> SampledModel:
    return fit(tensor(binary=True), likelihood="probit", **SMALL).fitted


def same(one: SampledModel, other: SampledModel) -> bool:
    (mine, about), (theirs, content) = one.state(), other.state()
    equal = mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    return equal and about["weights"] == content["weights"] and about["calibration"] == content["calibration"]


class StopAt(Tracker):
    """Sends a signal to this process after some sweep."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def step(self, record: Any) -> None:
        if record["iteration"] == self.iteration:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("sweep", [5, 24, 40, 100])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(sweep: int, tmp_path: Path) -> None:
    entries, options = tensor(), {**SMALL, "sweeps": 12, "process": None, "counts": None}
    whole = fit(entries, **options).fitted
    with pytest.raises(InterruptedRunError, match=rf"after sweep {sweep}.*holds it"):
        fit(entries, **options, output=tmp_path / "run", tracker=StopAt(sweep))
    resumed = fit(entries, **options, output=tmp_path / "run", resume=True).fitted
    assert same(whole, resumed)
    assert same(whole, FittedModel.load(tmp_path / "run"))


@pytest.mark.parametrize("sweep", [4, 40])
def test_g_that_is_told_of_rows_resumes_is_saved_and_folds_in(sweep: int, tmp_path: Path) -> None:
    entries, options = tensor(), {**SMALL, "process": True, "counts": True}
    whole = fit(entries, **options).fitted
    assert all(chain.process is not None for chain in whole.chains)
    told = [chain.process.rows.size(1) for chain in whole.chains]
    assert max(told) == 3  # a bias, a pair and a product
    with pytest.raises(InterruptedRunError):
        fit(entries, **options, output=tmp_path / "run", tracker=StopAt(sweep))
    assert same(whole, fit(entries, **options, output=tmp_path / "run", resume=True).fitted)
    loaded = FittedModel.load(tmp_path / "run")
    assert torch.equal(predict(loaded, entries).mean, predict(whole, entries).mean)
    few = TensorEntries([[8, 1, 1], [8, 2, 3]], [10.0, 12.0], (9, 7, 6))
    wider = fold_in(loaded, few)
    assert torch.equal(predict(wider, entries).mean, predict(whole, entries).mean)
    assert bool(torch.isfinite(predict(wider, few).mean).all())


def test_other_options_do_not_resume(tmp_path: Path) -> None:
    with pytest.raises(InterruptedRunError):
        fit(tensor(), **SMALL, output=tmp_path, tracker=StopAt(5))
    with pytest.raises(CheckpointError, match="products must be what the run began with"):
        fit(tensor(), **{**SMALL, "products": 2}, output=tmp_path, resume=True)


def test_workers_fit_what_one_process_fits() -> None:
    entries = tensor()
    alone = fit(entries, **SMALL).fitted

    def job(comm: ThreadCommunicator) -> SampledModel:
        return fit(entries, **SMALL, communicator=comm).fitted

    first, second = Workers(2).run(job)
    assert same(first, second)
    mine, theirs = (predict(model, entries).mean for model in (alone, first))
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)  # rows are kept in single precision


def test_options_of_the_other_method_are_refused() -> None:
    with pytest.raises(InputError, match=r"inducing is an option of method='paper'"):
        fit(tensor(), inducing=10)
    with pytest.raises(InputError, match=r"effort is an option of method='sampled'"):
        fit(tensor(), method="paper", effort="quick")


def test_it_beats_additive_biases_and_says_so() -> None:
    result = fit(tensor((12, 12, 12), 900), effort="quick")
    race = {row["name"]: row for row in result.fitted.history["race"]}
    assert race["this model"]["rmse"] < 0.5 * race["biases"]["rmse"] < race["training mean"]["rmse"]
    assert sum(row["weight"] or 0.0 for row in race.values()) == pytest.approx(1.0)
    new = tensor((12, 12, 12), 1728)[900:]
    found = predict(result.fitted, new)
    assert float((found.mean - new.values).square().mean().sqrt()) < 1.2 * race["this model"]["rmse"]
    inside = (new.values >= found.lower) & (new.values <= found.upper)
    assert 0.85 < float(inside.double().mean()) <= 1.0


def test_predictions_survive_saving(fitted: SampledModel, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    loaded = FittedModel.load(tmp_path / "model")
    assert torch.equal(predict(loaded, tensor()).mean, predict(fitted, tensor()).mean)
    assert loaded.describe() == fitted.describe()
    assert fitted.describe()["method"] == "sampled"


def test_an_unseen_entity_keeps_what_is_known_of_the_others(labels: SampledModel) -> None:
    """A new entity of the first mode: cells of good and bad entities of the others still differ, with more doubt."""
    rows = [[-1, column, 0] for column in range(7)]
    new, known = predict(labels, rows), predict(labels, [[3, column, 0] for column in range(7)])
    assert float(new.mean.max() - new.mean.min()) > 0.05
    assert bool((new.latent.variance > 0).all())
    assert float(new.latent.variance.mean()) > float(known.latent.variance.mean())
    assert bool(((new.mean > 0) & (new.mean < 1)).all())


def test_evaluate_recommend_and_explain(labels: SampledModel, fitted: SampledModel) -> None:
    scores = evaluate(labels, tensor(binary=True))
    assert scores["auc"] > 0.8
    assert scores["nlpd"] == pytest.approx(scores["log_loss"], rel=1e-6)
    best = recommend(labels, {"mode_0": 1, "mode_2": 3}, mode="mode_1", top=7)
    chances = [row.probability for row in best]
    assert chances == sorted(chances, reverse=True)
    assert len(recommend(fitted, {"mode_0": 1}, mode="mode_1", top=3)) == 3
    parts = shares(fitted)
    assert sum(parts.values()) == pytest.approx(1.0)
    assert parts["biases"] > 0.1
    near = neighbours(fitted, "mode_0", 2, top=3)
    assert [row.distance for row in near] == sorted(row.distance for row in near)


@pytest.mark.parametrize("binary", [False, True])
def test_a_new_entity_is_folded_in(binary: bool, labels: SampledModel, fitted: SampledModel) -> None:
    """Entries of a known entity under a new name: its predictions come near those of the known one."""
    model = labels if binary else fitted
    entries = tensor(count=336, binary=binary)
    mine = entries[entries.indices[:, 0] == 2]
    indices = mine.indices.clone()
    indices[:, 0] = 8
    few = TensorEntries(indices, mine.values, (9, 7, 6))
    wider = fold_in(model, few)
    assert wider.shape == (9, 7, 6)
    cells = torch.cartesian_prod(torch.arange(1), torch.arange(7), torch.arange(6))
    new, old = cells.clone(), cells.clone()
    new[:, 0], old[:, 0] = 8, 2
    folded, known = predict(wider, new).latent.mean, predict(wider, old).latent.mean
    prior = predict(model, torch.where(new == 8, -1, new)).latent.mean
    assert float((folded - known).square().mean()) < 0.5 * float((prior - known).square().mean())
    assert torch.equal(predict(wider, old).mean, predict(model, old).mean)


LITTLE: dict[str, TensorEntries] = {
    "10 entries": tensor((4, 3, 3), 10),
    "one entity a mode": TensorEntries([[0, 0]] * 12, np.arange(12.0), (1, 1)),
    "one entry an entity": TensorEntries([[i, i, i] for i in range(40)], np.sin(np.arange(40.0)), (40, 40, 40)),
    "8 modes": tensor((2, 2, 2, 2, 2, 2, 2, 2), 100),
    "two modes": tensor((20, 15), 150),
}


@pytest.mark.parametrize("name", LITTLE)
def test_little_to_learn_from_is_no_worse_than_additive_biases(name: str) -> None:
    entries = LITTLE[name]
    result = fit(entries, effort="quick")
    rows = {row["name"]: row for row in result.fitted.history["race"]}
    if "biases" in rows:
        assert rows["this model"]["rmse"] <= 1.05 * rows["biases"]["rmse"] + 1e-9
    found = predict(result.fitted, entries)
    assert bool(torch.isfinite(found.mean).all() and torch.isfinite(found.std).all())
    if name == "one entity a mode":
        assert any("one entity" in note for note in result.fitted.history["notes"])


def test_labels_that_are_all_the_same_give_a_model_and_a_warning() -> None:
    entries = TensorEntries(tensor().indices, torch.ones(200), (8, 7, 6))
    with pytest.warns(DataWarning, match="Nothing can be learnt"):
        model = fit(entries, likelihood="probit", **SMALL).fitted
    assert bool((predict(model, entries).mean > 0.8).all())


def test_many_entities_and_few_entries() -> None:
    generator = np.random.default_rng(0)
    indices = generator.integers(1_000_000, size=(10_000, 3))
    indices[:, 2] %= 20
    values = 0.5 * indices[:, 2] + generator.normal(size=10_000)
    result = fit(TensorEntries(indices, values, (1_000_000, 1_000_000, 20)), effort="quick")
    rows = {row["name"]: row for row in result.fitted.history["race"]}
    assert rows["this model"]["rmse"] <= 1.02 * rows["biases"]["rmse"]
    assert sum(tensor.nbytes for tensor in result.fitted.state()[0].values()) < 50e6


def test_labels_with_weights_count_as_often() -> None:
    """A weight of 3 is three equal labels: the same chain."""
    entries = tensor(count=60, binary=True)
    weights = torch.ones(60)
    weights[:20] = 3
    once = TensorEntries(entries.indices, entries.values, (8, 7, 6), weights=weights)
    copies = weights.long()
    often = TensorEntries(
        entries.indices.repeat_interleave(copies, 0), entries.values.repeat_interleave(copies), (8, 7, 6)
    )
    options = {**SMALL, "validation": 0.0, "likelihood": "probit"}
    one, two = (fit(part, **options).fitted for part in (once, often))
    torch.testing.assert_close(predict(one, entries).mean, predict(two, entries).mean)


def test_the_plan_counts_its_work() -> None:
    """More effort is more work; many entries get fewer sweeps and no runner beyond the budget."""
    quick, normal, thorough = (recipe.plan(effort, 20_000, 500, 3, binary=False) for effort in recipe.EFFORTS)
    work = [sum(s.sweeps for s in (*p.race, *p.long[: p.most])) for p in (quick, normal, thorough)]
    assert work == sorted(work)
    assert len(set(work)) == 3
    large = recipe.plan("normal", 3_000_000, 1_000_000, 3, binary=False)
    assert large.runners[0] == recipe.RUNNERS[0]
    assert len(large.runners) < len(normal.runners)
    assert large.samples < normal.samples
    assert recipe.plan("normal", 1000, 50, 2, binary=True).runners == tuple(
        dict.fromkeys(recipe.plan("normal", 1000, 50, 2, binary=True).runners)
    )
    assert all(runner.products == 0 for runner in recipe.plan("normal", 1000, 50, 2, binary=True).runners)
