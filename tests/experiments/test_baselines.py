"""Every method of the tables learns where it can, sees training entries alone, and says what it cannot do."""

import json
from dataclasses import replace

import methods
import numpy as np
import pytest
import torch
from baselines import svgp
from baselines.base import Method, Task
from baselines.subtensors import Subtensors
from baselines.tools import TooLargeError, WrongTaskError, choose, dense, hold_out, one_hot, score
from methods import REGISTRY, make
from sklearn.metrics import roc_auc_score

from gptf_gpytorch import InputError, TensorEntries, TrainConfig
from gptf_gpytorch.serving.predictions import predict
from gptf_gpytorch.training.result import Result

SHAPE = (20, 15, 10)
# What would take longer than a test should; each still does all that it does.
QUICK = {
    "cp": {"iterations": 30},
    "inftucker": {"kernels": ("rbf", "matern"), "learning_rate": 0.1},
    "dintucker_lite": {"kernels": ("rbf",), "steps": 100},
    "inftuckerex_lite": {"kernels": ("rbf",), "steps": 100},
    "svgp_adam": {"inducing": 30, "learning_rates": (0.03, 0.1), "batch_sizes": (256,)},
}
LABELS_ONLY = {"counts_logistic", "logistic", "linear_svm"}
# They take a cell without a training entry for 0: they learn where few are.
WHOLE = {"cp", "nncp", "hosvd", "tucker", "sparse_cp", "inftucker", "dintucker_lite", "inftuckerex_lite"}
OURS = ("sampled", "sampled_on_workers", "ours", "ours_on_workers")
WITH_MODEL = [name for name in REGISTRY if name not in (*OURS, "mean")]


def method(name: str) -> Method:
    return make(name, QUICK.get(name, {}))


def tensor(binary: bool, count: int = 600) -> tuple[Task, TensorEntries]:
    """A noisy nonlinear function of two factors a mode, at ``count`` cells to train on and others to test on."""
    generator = np.random.default_rng(3)
    U = [generator.normal(size=(d, 2)) for d in SHAPE]
    cells = np.stack(np.unravel_index(generator.permutation(np.prod(SHAPE)), SHAPE), axis=1)
    a, b, c = (table[cells[:, mode]] for mode, table in enumerate(U))
    f = 1.5 * np.tanh(a[:, 0] * b[:, 0]) + np.sin(2.0 * c[:, 0] + b[:, 1]) + a[:, 1]
    y = f + 0.1 * generator.normal(size=len(f))
    entries = TensorEntries(cells, (y > 0).astype(float) if binary else y, SHAPE)
    return Task(entries[:count], binary, rank=2, seed=0), entries[count : count + 300]


def _squared(task: Task) -> Task:
    return replace(task, train=replace(task.train, values=task.train.values.square()))


def loss(test: TensorEntries, predicted: np.ndarray, binary: bool) -> float:
    y = test.values.numpy()
    return 1.0 - roc_auc_score(y, predicted) if binary else float(np.sqrt(np.mean((y - predicted) ** 2)))


@pytest.mark.parametrize("binary", [False, True], ids=["values", "labels"])
@pytest.mark.parametrize("name", WITH_MODEL)
def test_a_method_beats_the_training_mean_and_can_be_repeated(name: str, binary: bool) -> None:
    if name in LABELS_ONLY and not binary:
        pytest.skip("for labels alone: test_methods_for_labels_refuse_values")
    if name == "popularity" and not binary:
        pytest.skip("here every cell has a value: test_popularity_tells_zeros_from_values")
    task, test = tensor(binary, 2700 if name in WHOLE else 600)
    if name == "nncp":
        task, test = _squared(task), replace(test, values=test.values.square())
    mean = loss(test, make("mean", {}).fit(task).predict(test.indices), binary)
    fitted = method(name).fit(task)
    predicted = fitted.predict(test.indices)
    assert predicted.shape == (len(test),)
    assert predicted.dtype == np.float64
    assert np.isfinite(predicted).all()
    assert loss(test, predicted, binary) < (0.4 if binary else 0.95 * mean)
    if fitted.probabilities:
        assert binary
        assert predicted.min() >= 0.0
        assert predicted.max() <= 1.0
    assert method(name).name == name
    json.dumps(fitted.details)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002, a library's global generator must not matter
    np.testing.assert_array_equal(method(name).fit(task).predict(test.indices), predicted)


@pytest.mark.parametrize(("name", "at_most"), [("svgp_adam", 0.5), ("fm", 0.6), ("cp2", 0.9)])
def test_methods_of_the_entries_alone_find_the_function(name: str, at_most: float) -> None:
    task, test = tensor(False)
    spread = float(test.values.std())
    assert loss(test, method(name).fit(task).predict(test.indices), False) < at_most * spread


def test_a_factorisation_machine_may_know_how_often_entities_occur() -> None:
    """Users of four entries mostly say 1, those of one and of sixteen mostly 0."""
    generator = np.random.default_rng(0)
    times = np.repeat([1, 4, 16], [200, 60, 15])

    def drawn(users: np.ndarray) -> TensorEntries:
        y = (times[users] == 4) ^ (generator.random(len(users)) < 0.2)
        cells = np.stack([users, generator.integers(30, size=len(users))], axis=1)
        return TensorEntries(cells, y.astype(float), shape=(len(times), 30))

    train, test = drawn(np.repeat(np.arange(len(times)), times)), drawn(np.arange(len(times)))
    told, untold = (
        score(test, make("fm", {"occurrences": told}).fit(Task(train, True, 2, 0)).predict(test.indices), True)
        for told in (True, False)
    )
    assert told > untold + 0.01


def test_the_mean_is_the_training_mean() -> None:
    task, test = tensor(False)
    np.testing.assert_allclose(make("mean", {}).fit(task).predict(test.indices), float(task.train.values.mean()))


def test_popularity_counts_nonzeros() -> None:
    entries = TensorEntries([[0, 0], [0, 1], [1, 1], [2, 1]], [1.0, 1.0, 1.0, 0.0], shape=(3, 2))
    found = make("popularity", {}).fit(Task(entries, True, 1, 0)).predict(torch.tensor([[0, 1], [2, 0]]))
    np.testing.assert_allclose(found, [2 * np.log(3), np.log(2)])


def test_popularity_tells_zeros_from_values() -> None:
    generator = np.random.default_rng(0)
    cells = np.stack([generator.permutation(np.repeat(np.arange(30), 30)) for _ in range(3)], axis=1)
    busy = cells[:, 0] < 10
    y = np.where(generator.random(900) < np.where(busy, 0.9, 0.1), 3.0, 0.0)
    entries = TensorEntries(cells, y, shape=(30, 30, 30))
    task, test = Task(entries[:700], False, 1, 0), entries[700:]
    mean, found = (make(name, {}).fit(task).predict(test.indices) for name in ("mean", "popularity"))
    assert loss(test, found, False) < 0.8 * loss(test, mean, False)


@pytest.mark.parametrize("name", ["cp", "sparse_cp"])
def test_cp_recovers_a_tensor_of_its_own_rank(name: str) -> None:
    generator = np.random.default_rng(0)
    U = [generator.random((d, 2)) for d in (6, 5, 4)]
    full = np.einsum("ir,jr,kr->ijk", *U)
    cells = np.argwhere(np.ones_like(full))
    task = Task(TensorEntries(cells, full.reshape(-1), full.shape), False, rank=2, seed=0)
    options = {"iterations": 2000, "tolerance": 1e-12}
    found = make(name, options).fit(task).predict(torch.from_numpy(cells))
    np.testing.assert_allclose(found, full.reshape(-1), atol=1e-3)


def test_hosvd_and_tucker_of_full_rank_give_the_tensor_back() -> None:
    full = np.random.default_rng(0).normal(size=(3, 3, 3))
    cells = np.argwhere(np.ones_like(full))
    task = Task(TensorEntries(cells, full.reshape(-1), full.shape), False, rank=3, seed=0)
    for name in ("hosvd", "tucker"):
        np.testing.assert_allclose(
            make(name, {}).fit(task).predict(torch.from_numpy(cells)), full.reshape(-1), atol=1e-9
        )


@pytest.mark.parametrize("name", ["cp", "nncp", "hosvd", "tucker", "inftucker"])
def test_a_tensor_that_cannot_be_dense_is_refused(name: str) -> None:
    task = Task(TensorEntries([[0, 0, 0]], [1.0], shape=(3000, 150, 30000)), False, 3, 0)
    with pytest.raises(TooLargeError, match=r"at most 20,000,000 cells to be dense. Got 3000 x 150 x 30000 = 13,500"):
        make(name, {}).fit(task)


@pytest.mark.parametrize("name", sorted(LABELS_ONLY))
def test_methods_for_labels_refuse_values(name: str) -> None:
    with pytest.raises(WrongTaskError, match=f"{name} must be given a task of labels. Got real values."):
        make(name, {}).fit(tensor(False)[0])


def test_a_non_negative_factorisation_refuses_negative_values() -> None:
    with pytest.raises(WrongTaskError, match=r"must be at least 0. Got -"):
        make("nncp", {}).fit(tensor(False)[0])
    assert issubclass(WrongTaskError, InputError)


def test_the_svgp_takes_all_steps_on_all_entries_where_nothing_is_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    task, test = tensor(False)
    seen = set[int]()
    step = svgp._Run._step

    def watched(run: svgp._Run) -> None:
        step(run)
        seen.add(len(run.y))

    monkeypatch.setattr(svgp._Run, "_step", watched)
    one = {"inducing": 30, "learning_rates": (0.1,), "batch_sizes": (256,), "max_steps": 50}
    fitted = make("svgp_adam", {**one, "validation": 0.0}).fit(task)
    assert seen == {len(task.train)}
    assert fitted.details["steps"] == 50
    assert fitted.details["history"] == []
    mean = make("mean", {}).fit(task)
    assert loss(test, fitted.predict(test.indices), False) < loss(test, mean.predict(test.indices), False)
    with pytest.raises(InputError, match=r"must hold out entries to choose on\. Got validation = 0 and 6 choices"):
        make("svgp_adam", {"validation": 0.0}).fit(task)


def test_the_svgp_records_the_held_out_metric_against_time() -> None:
    task, _ = tensor(False)
    details = method("svgp_adam").fit(task).details
    seconds, metric = zip(*details["history"], strict=True)
    assert list(seconds) == sorted(seconds)
    assert min(metric) < 0.6 * metric[0]
    assert details["learning_rate"] in QUICK["svgp_adam"]["learning_rates"]


def test_held_out_entries_are_not_trained_on() -> None:
    task, _ = tensor(True)
    kept, held = hold_out(task, 0.25)
    assert (len(kept.train), len(held)) == (450, 150)
    both = torch.cat([kept.train.indices, held.indices]).tolist()
    assert sorted(both) == sorted(task.train.indices.tolist())
    assert (dense(kept, 10**6) != 0).sum() == (kept.train.values != 0).sum()


def test_the_best_choice_wins_and_a_single_one_is_not_tried() -> None:
    task, _ = tensor(False)

    def fit(part: Task, shift: float) -> object:
        assert len(part.train) < len(task.train)
        fitted = make("mean", {}).fit(part)
        return replace(fitted, predict=lambda indices: fitted.predict(indices) + shift)

    best, details = choose(task, [3.0, 0.0, -3.0], fit)
    assert best == details["chosen"] == 0.0
    assert choose(task, [3.0], fit) == (3.0, {"chosen": 3.0})


def test_scores() -> None:
    entries = TensorEntries([[0], [1], [2]], [0.0, 1.0, 1.0], shape=(3,))
    assert score(entries, np.array([0.0, 2.0, 1.0]), binary=True) == 1.0
    assert score(entries, np.array([0.0, 1.0, 4.0]), binary=False) == pytest.approx(-np.sqrt(3.0))
    assert score(entries, np.array([0.0, np.nan, 4.0]), binary=False) == -np.inf
    assert one_hot(entries.indices, (3,)).toarray().tolist() == np.eye(3).tolist()


def test_a_subtensor_holds_the_training_values_of_its_cells() -> None:
    task, _ = tensor(False)
    whole, source = torch.from_numpy(dense(task, 10**6)), Subtensors(task, size=12)
    for _ in range(3):
        rows, grid = source.draw()
        assert [len(set(at.tolist())) for at in rows] == [12, 12, 10]
        assert torch.equal(grid, whole[torch.meshgrid(*rows, indexing="ij")])


def test_an_ensemble_averages_fits_from_several_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    task, test = tensor(False)
    found: list[Result] = []
    fit = methods.fit
    monkeypatch.setattr(methods, "fit", lambda *arguments: found.append(fit(*arguments)) or found[-1])
    fitted = make("ours", {"ensemble": 2, "inducing": 20, "max_iterations": 30}).fit(task)
    assert [result.fitted.config.seed for result in found] == [0, 1]
    one, two = (predict(result.fitted, test.indices).mean.numpy() for result in found)
    assert not np.allclose(one, two, atol=1e-3)
    np.testing.assert_allclose(fitted.predict(test.indices), (one + two) / 2.0)


@pytest.mark.parametrize("binary", [False, True], ids=["values", "labels"])
def test_the_default_method_is_told_the_likelihood_and_the_seed_alone(
    binary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, test = tensor(binary)
    found: list[Result] = []
    fit = methods.fit
    monkeypatch.setattr(methods, "fit", lambda *arguments: found.append(fit(*arguments)) or found[-1])
    fitted = make("sampled", {"effort": "quick"}).fit(replace(task, seed=5))
    likelihood = "probit" if binary else "gaussian"
    assert found[0].fitted.config == TrainConfig(likelihood=likelihood, seed=5, effort="quick")
    assert make("sampled", {}).config == TrainConfig()
    predicted = fitted.predict(test.indices)
    mean = loss(test, make("mean", {}).fit(task).predict(test.indices), binary)
    assert loss(test, predicted, binary) < (0.4 if binary else 0.8 * mean)
    assert fitted.probabilities == binary
    json.dumps(fitted.details)
