"""New entities: their factors are the maximum of what they should be, and predict what they have not been told."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy import optimize, stats

from gptf_gpytorch import DataError, InputError, Vocabulary
from gptf_gpytorch.data import TensorEntries
from gptf_gpytorch.serving.fold_in import _NewRows, fold_in
from gptf_gpytorch.serving.predictions import predict
from gptf_gpytorch.serving.reading import read_entries
from gptf_gpytorch.training.saved import FittedModel

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)


def state(fitted: FittedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in fitted.mll.state_dict().items()}


def objective(fitted: FittedModel, entries: TensorEntries) -> Callable[[np.ndarray], float]:
    """The objective of a new user's factors, entry by entry, with the matrices of the textbook."""
    model, strategy = fitted.model, fitted.mll.strategy
    ell = model.covar_module.base_kernel.lengthscale.detach().numpy().ravel()
    scale, mu = model.covar_module.outputscale.item(), model.mean_module.constant.item()
    B = strategy.inducing_points.detach().numpy()
    L = np.linalg.cholesky(
        np.array([[rbf(b, c, ell, scale) for c in B] for b in B]) + strategy.jitter_val * np.eye(len(B))
    )
    q = strategy._variational_distribution
    m, C = q.variational_mean.numpy(), q.chol_variational_covar.numpy()
    ads, pages = (model.factors[mode].detach().numpy() for mode in (1, 2))

    def at(u: np.ndarray) -> float:
        total = -0.5 * float(u @ u)
        for (_, ad, page), value in zip(entries.indices.tolist(), entries.values.tolist(), strict=True):
            x = np.concatenate([u, ads[ad], pages[page]])
            w = np.linalg.solve(L, np.array([rbf(b, x, ell, scale) for b in B]))
            f = mu + w @ m + math.sqrt(scale - w @ w + w @ C @ C.T @ w) * NODES
            if fitted.binary:
                log_p = stats.norm.logcdf((2 * value - 1) * f)
            else:
                y = (value - fitted.scaling.centre) / fitted.scaling.spread
                log_p = stats.norm.logpdf(y, f, math.sqrt(fitted.mll.likelihood.noise.item()))
            total += float(WEIGHTS @ log_p) / WEIGHTS.sum()
        return total

    return at


def rbf(x: np.ndarray, y: np.ndarray, ell: np.ndarray, scale: float) -> float:
    return scale * math.exp(-0.5 * float(np.sum(((x - y) / ell) ** 2)))


def test_a_few_entries_say_a_lot(either) -> None:
    few, rest = either.newcomer[:10], either.newcomer[10:]
    wider = fold_in(either.fitted, few)
    assert wider.shape == (15, 9, 8)
    told = (predict(wider, rest).mean - rest.values).square().mean().sqrt()
    unknown = rest.indices.clone()
    unknown[:, 0] = -1
    untold = (predict(either.fitted, unknown).mean - rest.values).square().mean().sqrt()
    assert told < (0.75 if either.fitted.binary else 0.25) * untold


def test_it_is_the_maximum_of_the_objective(either) -> None:
    few = either.newcomer[:10]
    row = fold_in(either.fitted, few).model.factors[0][14].detach().numpy()
    at = objective(either.fitted, few)
    starts = [np.zeros(2), either.fitted.model.factors[0].detach().mean(0).numpy()]
    found = [optimize.minimize(lambda u: -at(u), start, method="BFGS", tol=1e-4) for start in starts]
    best = min(found, key=lambda result: result.fun)
    assert at(row) == pytest.approx(-best.fun, abs=1e-5)
    assert row == pytest.approx(best.x, abs=1e-2)


def test_the_old_model_is_untouched_and_the_new_one_agrees(either) -> None:
    before = state(either.fitted)
    gradients = [parameter.grad for parameter in either.fitted.mll.parameters()]
    values = [None if gradient is None else gradient.clone() for gradient in gradients]
    wider = fold_in(either.fitted, either.newcomer[:10])
    for name, tensor in either.fitted.mll.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    for parameter, gradient, value in zip(either.fitted.mll.parameters(), gradients, values, strict=True):
        assert parameter.grad is gradient
        assert gradient is None or torch.equal(gradient, value)
    assert len(either.fitted.vocabularies[0]) == 14
    assert torch.equal(predict(wider, either.test.indices).mean, predict(either.fitted, either.test).mean)
    with torch.no_grad():
        wider.model.factors[0].add_(1.0)
    assert torch.equal(either.fitted.model.factors[0], before["model.factors.weights.0"])


def test_it_is_saved_and_loaded(either, tmp_path: Path) -> None:
    wider = fold_in(either.fitted, either.newcomer[:10])
    wider.save(tmp_path / "model")
    again = FittedModel.load(tmp_path / "model")
    assert "u14" in again.vocabularies[0]
    assert torch.equal(predict(again, either.newcomer).mean, predict(wider, either.newcomer).mean)


def test_nothing_to_learn_from_gives_the_prior(either) -> None:
    fitted = replace(either.fitted, vocabularies=(None, None, None))
    nothing = TensorEntries(torch.empty(0, 3, dtype=torch.int64), torch.empty(0), (16, 9, 9))
    wider = fold_in(fitted, nothing)
    assert wider.shape == (16, 9, 9)
    assert torch.equal(wider.model.factors[0][14:], torch.zeros(2, 2, dtype=torch.float64))
    assert torch.equal(wider.model.factors[2][8:], torch.zeros(1, 2, dtype=torch.float64))
    weightless = replace(either.newcomer[:5], weights=torch.zeros(5).double())
    assert torch.equal(fold_in(either.fitted, weightless).model.factors[0][14], torch.zeros(2, dtype=torch.float64))


def test_entities_do_not_disturb_each_other(gaussian) -> None:
    """New users who share nothing get what each gets alone; a new ad that both share is found with them."""
    both = two_users(gaussian.newcomer)
    both = replace(both, values=both.values + 4.0 * (both.indices[:, 0] == 15))
    together = fold_in(gaussian.fitted, both)
    for part, user in ((both[:10], "u14"), (both[10:], "u15")):
        alone = fold_in(gaussian.fitted, part)
        assert alone.shape == (15, 9, 8)
        row = together.model.factors[0][int(together.vocabularies[0].encode([user]))]
        torch.testing.assert_close(alone.model.factors[0][14], row, rtol=0, atol=1e-4)
    cells = both.indices.clone()
    cells[[0, 10], 1] = 9
    vocabularies = (both.vocabularies[0], Vocabulary([*both.vocabularies[1], "new"]), both.vocabularies[2])
    shared = TensorEntries(cells, both.values, (16, 10, 8), both.names, vocabularies)
    wider = fold_in(gaussian.fitted, shared)
    assert wider.shape == (16, 10, 8)
    assert wider.model.factors[1][9].norm() > 0


def two_users(newcomer: TensorEntries) -> TensorEntries:
    """The first ten entries as those of user 14, the next ten as those of user 15."""
    cells = newcomer.indices[:20].clone()
    cells[10:, 0] = 15
    users = Vocabulary([*newcomer.vocabularies[0], "u15"])
    return TensorEntries(cells, newcomer.values[:20], (16, 9, 8), newcomer.names, (users, *newcomer.vocabularies[1:]))


def test_each_group_keeps_its_better_start(gaussian, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without steps the result is the better of the two starts, for each user on his own."""
    fitted = gaussian.fitted
    other = torch.tensor([1.0, -0.5], dtype=torch.float64)
    monkeypatch.setattr(_NewRows, "_ascend", lambda self, start: start)
    monkeypatch.setattr(_NewRows, "_means", lambda self: [other.expand(n, -1) for n in self.counts])
    both = two_users(gaussian.newcomer)
    # What user 14 would see with factors 0, and user 15 with the others.
    taught = fold_in(fitted, both)
    with torch.no_grad():
        for row, factors in ((14, torch.zeros(2)), (15, other)):
            taught.model.factors[0][row] = factors
        taught.mll.strategy.stamp.fill_(taught.mll.strategy.checksum())
    told = replace(both, values=predict(taught, both.indices).mean)
    for users in ([14, 15], [15, 14]):
        cells = told.indices.clone()
        cells[:10, 0], cells[10:, 0] = users
        swapped = replace(told, indices=cells)
        found = fold_in(fitted, swapped).model.factors[0].detach()
        for row, part, start in ((users[0], told[:10], np.zeros(2)), (users[1], told[10:], other.numpy())):
            at = objective(fitted, part)
            assert at(start) == max(at(np.zeros(2)), at(other.numpy()))
            assert found[row].tolist() == start.tolist()


def test_groups_are_what_shares_entries(gaussian) -> None:
    """New users 14 to 17 (places 0 to 3) and new ads 9 and 10 (places 4 and 5)."""
    cells = torch.tensor([[14, 0, 0], [15, 9, 0], [16, 9, 0], [16, 10, 0], [17, 0, 0], [0, 0, 0]])
    entries = TensorEntries(cells, torch.ones(6), (18, 11, 8))
    found = _NewRows(gaussian.fitted, cells, entries, (18, 11, 8)).groups.tolist()
    assert found == [0, 1, 1, 3, 1, 1]


def test_a_weight_counts_as_repetition(either) -> None:
    few = either.newcomer[:6]
    twice = fold_in(either.fitted, TensorEntries.concat([few, few]))
    weighed = fold_in(either.fitted, replace(few, weights=torch.full((6,), 2.0).double()))
    torch.testing.assert_close(twice.model.factors[0], weighed.model.factors[0], rtol=0, atol=1e-5)


def test_entries_in_a_users_ids(gaussian) -> None:
    rows = pa.table(
        {"user": ["eve", "u03", "eve"], "ad": ["a02"] * 3, "page": ["p01", "p03", "p04"], "value": [60.0, 40.0, 50.0]}
    )
    entries = read_entries(gaussian.fitted, rows, unseen="new")
    wider = fold_in(gaussian.fitted, entries)
    assert wider.vocabularies[0].decode([14]) == ["eve"]
    assert wider.vocabularies[1:] == gaussian.fitted.vocabularies[1:]
    assert wider.shape == (15, 9, 8)
    assert not wider.mll.strategy.is_stale
    known = read_entries(gaussian.fitted, rows.slice(1, 1), unseen="new")
    assert fold_in(gaussian.fitted, known) is gaussian.fitted


def test_integers_may_be_the_text_that_a_model_has_as_ids(gaussian) -> None:
    users = Vocabulary([str(row) for row in range(14)])
    fitted = replace(gaussian.fitted, vocabularies=(users, *gaussian.fitted.vocabularies[1:]))
    entries = TensorEntries(
        [[0, 0, 0], [1, 1, 1]],
        [50.0, 60.0],
        (2, 9, 8),
        fitted.mode_names,
        (Vocabulary([3, 77]), *fitted.vocabularies[1:]),
    )
    assert fold_in(fitted, entries).vocabularies[0].decode([3, 14]) == ["3", "77"]


def test_bad_input(either) -> None:
    fitted, few = either.fitted, either.newcomer[:3]
    unknown = TensorEntries([[-1, 0, 0]], [1.0], fitted.shape, few.names, fitted.vocabularies, unseen="prior")
    with pytest.raises(InputError, match=r"must have ids of their own. Got some that are unknown"):
        fold_in(fitted, unknown)
    with pytest.raises(InputError, match=r"New entities of mode 'user' need ids. Got index 14 of 14"):
        fold_in(fitted, TensorEntries([[14, 0, 0]], [1.0], (15, 9, 8)))
    with pytest.raises(InputError, match="Mode 'user' of the model has indices and no ids"):
        fold_in(replace(fitted, vocabularies=(None, None, None)), few)
    with pytest.raises(InputError, match="the model's modes"):
        fold_in(fitted, replace(few, names=("ad", "user", "page")))
    if fitted.binary:
        with pytest.raises(DataError, match=r"Labels must be 0 or 1. Got 3 at entry 0"):
            fold_in(fitted, replace(few, values=torch.full((3,), 3.0).double()))
