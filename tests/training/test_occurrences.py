"""How often entities occur, as part of an entry's input: the same as a tensor with further modes, made by hand."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from small_tensor import make_entries
from workers import ThreadCommunicator, Workers

from gptf_gpytorch import GPTF, FittedModel, TrainConfig, fit, initialize, marginals
from gptf_gpytorch.data import TensorEntries
from gptf_gpytorch.factors import level
from gptf_gpytorch.serving.explain import relevance
from gptf_gpytorch.serving.fold_in import fold_in
from gptf_gpytorch.serving.predictions import predict
from gptf_gpytorch.serving.recommend import recommend
from gptf_gpytorch.training.objective import mean_log_density
from gptf_gpytorch.training.saved import build

LEVELS = 40
ENTRIES = make_entries()[:300]


def by_hand(indices: torch.Tensor) -> torch.Tensor:
    """Indices with the levels of their entities beside them, counted in Python."""
    counts = [Counter(column) for column in ENTRIES.indices.T.tolist()]
    rows = []
    for row in indices.tolist():
        seen = [counts[mode][i] for mode, i in enumerate(row)]
        rows.append(row + [int(level(torch.tensor([count]))) for count in seen])
    return torch.tensor(rows)


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (1, 0), (2, 2), (3, 3), (4, 4), (1000, 20), (10**9, 39)])
def test_levels_grow_by_two_for_each_doubling(count: int, expected: int) -> None:
    assert level(torch.tensor([count])).tolist() == [expected]


@pytest.mark.parametrize("likelihood", ["gaussian", "probit"])
@pytest.mark.parametrize("options", [{}, {"draws": 2, "biases": True}], ids=["plain", "draws and biases"])
def test_it_is_a_tensor_with_as_many_modes_again(likelihood: Any, options: dict[str, Any]) -> None:
    values = ENTRIES.values if likelihood == "gaussian" else (ENTRIES.values > ENTRIES.values.median()).double()
    config = TrainConfig(method="paper", likelihood=likelihood, rank=2, inducing=20, occurrences=True, **options)
    mine = build(config, ENTRIES.shape, len(ENTRIES))
    config = TrainConfig(method="paper", likelihood=likelihood, rank=(2, 2, 2, 1, 1, 1), inducing=20, **options)
    plain = build(config, (*ENTRIES.shape, LEVELS, LEVELS, LEVELS), len(ENTRIES))
    wide = by_hand(ENTRIES.indices)
    assert len(set(wide[:, 3].tolist())) > 2
    bounds = []
    for mll, indices in ((mine, ENTRIES.indices), (plain, wide)):
        initialize(mll, indices, values, seed=3)
        bound = mll(mll.model.train()(indices), values)
        bound.backward()
        bounds.append(bound.item())
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-12)
    others = dict(plain.named_parameters())
    for name, parameter in mine.named_parameters():
        torch.testing.assert_close(parameter.grad, others[name].grad, rtol=1e-10, atol=1e-12)
    cells = torch.cartesian_prod(torch.arange(15), torch.arange(12), torch.arange(10))
    for found, expected in zip(marginals(mine.model, cells), marginals(plain.model, by_hand(cells)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    few, wide = cells[:20], by_hand(cells[:20])
    svgp = mine.model.to_svgp().eval()(few)
    torch.testing.assert_close(svgp.mean, plain.model.eval()(wide).mean, rtol=1e-8, atol=1e-8)


def test_what_is_told_by_how_often_users_occur_is_found() -> None:
    """Users of four entries mostly say 1, those of one and of sixteen mostly 0."""
    generator = torch.Generator().manual_seed(0)
    times = torch.tensor([1] * 200 + [4] * 60 + [16] * 15)

    def drawn(users: torch.Tensor) -> TensorEntries:
        items = torch.randint(30, (len(users),), generator=generator)
        flip = torch.rand(len(users), generator=generator) < 0.2
        y = ((times[users] == 4) ^ flip).double()
        return TensorEntries(torch.stack([users, items], dim=1), y, (len(times), 30))

    train, test = drawn(torch.arange(len(times)).repeat_interleave(times)), drawn(torch.arange(len(times)))
    options = {
        "method": "paper",
        "likelihood": "probit",
        "rank": 1,
        "inducing": 20,
        "draws": 1,
        "optimizer": "adam",
        "validation": 0.0,
    }
    told, untold = (
        fit(train, **options, learning_rate=0.1, max_iterations=100, occurrences=occurrences).fitted
        for occurrences in (True, False)
    )
    densities = [mean_log_density(model.mll, test, model.scaling) for model in (told, untold)]
    assert densities[0] > densities[1] + 0.03
    assert densities[0] > -0.6  # what is known best has -.5


@pytest.fixture(scope="module")
def fitted() -> FittedModel:
    return fit(ENTRIES, method="paper", rank=2, inducing=30, occurrences=True, max_iterations=60, validation=0.0).fitted


def test_a_model_is_saved_with_its_levels_and_asked_as_any_other(fitted: FittedModel, tmp_path: Path) -> None:
    assert fitted.shape == ENTRIES.shape
    fitted.save(tmp_path / "model")
    again, cells = FittedModel.load(tmp_path / "model"), ENTRIES.indices
    assert torch.equal(predict(again, cells).mean, predict(fitted, cells).mean)
    shares = relevance(fitted)
    assert list(shares) == list(fitted.mode_names)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert list(shares.values()) == pytest.approx(fitted.model.relevance().tolist())
    best = recommend(fitted, {"user": 3}, mode="item", top=3)  # averaged over days
    cells = torch.cartesian_prod(torch.tensor([3]), torch.tensor([best[0].id]), torch.arange(10))
    assert best[0].mean == pytest.approx(float(predict(fitted, cells).mean.mean()))
    assert fitted.describe()["ranks"] == [2, 2, 2]


def test_new_entities_have_the_level_of_their_entries(fitted: FittedModel) -> None:
    mine = ENTRIES[ENTRIES.indices[:, 0] == 3]
    cells = mine.indices.clone()
    cells[:, 0] = 15
    wider = fold_in(fitted, TensorEntries(cells, mine.values, (17, 12, 10), ENTRIES.names))
    before, after = fitted.model.factors.levels, wider.model.factors.levels
    assert torch.equal(after[0], torch.cat([before[0], before[0][[3]], torch.zeros(1, dtype=torch.long)]))
    assert torch.equal(after[1], before[1])
    known = ENTRIES.indices[:20]
    assert torch.equal(predict(wider, known).mean, predict(fitted, known).mean)
    # As many entries of the same values at the same places: the same entity.
    torch.testing.assert_close(predict(wider, cells).mean, predict(fitted, mine.indices).mean, rtol=0, atol=0.2)


def test_levels_are_counted_over_all_workers() -> None:
    config = TrainConfig(method="paper", rank=2, inducing=20, occurrences=True, draws=1)
    alone = build(config, ENTRIES.shape, len(ENTRIES))
    initialize(alone, ENTRIES.indices, ENTRIES.values, seed=1)

    def job(communicator: ThreadCommunicator) -> dict[str, torch.Tensor]:
        mll = build(config, ENTRIES.shape, len(ENTRIES), communicator)
        rows = [slice(0, 100), slice(100, None)][communicator.rank]
        initialize(mll, ENTRIES.indices[rows], ENTRIES.values[rows], seed=1)
        return mll.state_dict()

    for state in Workers(2).run(job):
        for name, tensor in alone.state_dict().items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-10, atol=1e-10)


def test_a_plain_model_has_no_levels() -> None:
    assert GPTF((3, 4), 2, 2).factors.levels == []
