"""What several methods need: a look at held-out training entries, the dense tensor, one-hot modes."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import scipy.sparse
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from baselines.base import Array, Fitted, Task
from gptf_gpytorch import InputError, TensorEntries

_Choice = TypeVar("_Choice")


class TooLargeError(InputError):
    """A method that needs every cell of the tensor was given one that has too many."""


class WrongTaskError(InputError):
    """A method was given values that it is not made for."""


def require_binary(name: str, task: Task) -> None:
    """A method for labels alone."""
    if not task.binary:
        raise WrongTaskError(f"{name} must be given a task of labels. Got real values.")


def dense(task: Task, max_cells: int) -> Array:
    """The whole tensor, zero where there is no training entry."""
    cells = task.train.cells
    if cells > max_cells:
        sizes = " x ".join(map(str, task.train.shape))
        raise TooLargeError(f"A tensor must have at most {max_cells:,} cells to be dense. Got {sizes} = {cells:,}.")
    tensor = np.zeros(task.train.shape)
    tensor[columns(task.train.indices)] = task.train.values.double().numpy()
    return tensor


def columns(indices: Tensor) -> tuple[Array, ...]:
    """Indices `[n, K]` as NumPy's advanced indices."""
    return tuple(indices.long().numpy().T)


def nonzeros(entries: TensorEntries) -> TensorEntries:
    """The entries whose value is not 0."""
    return entries[entries.values != 0]


def one_hot(indices: Tensor, shape: tuple[int, ...]) -> scipy.sparse.csr_matrix:
    """A binary feature for every entity of every mode `[n, sum of d_k]`: those of the entry's entities are 1."""
    offsets = np.concatenate([[0], np.cumsum(shape)[:-1]])
    features = (indices.long().numpy() + offsets).reshape(-1)
    n, K = indices.shape
    return scipy.sparse.csr_matrix((np.ones(n * K), features, np.arange(0, n * K + 1, K)), shape=(n, sum(shape)))


def hold_out(task: Task, fraction: float = 0.1) -> tuple[Task, TensorEntries]:
    """A task with a seeded share of the training entries left out, and that share."""
    n = len(task.train)
    order = torch.from_numpy(np.random.default_rng([task.seed, 9]).permutation(n))
    count = min(max(round(fraction * n), 1), n - 1)
    return replace(task, train=task.train[order[count:].sort().values]), task.train[order[:count].sort().values]


def score(entries: TensorEntries, predicted: Array, binary: bool) -> float:
    """How good predictions are, larger is better: the AUC of labels, minus the RMSE of values."""
    y = entries.values.double().numpy()
    if not np.isfinite(predicted).all():
        return -math.inf
    if not binary:
        return -float(np.sqrt(np.mean((y - predicted) ** 2)))
    return float(roc_auc_score(y, predicted)) if 0 < y.sum() < len(y) else 0.5


def choose(
    task: Task, choices: Iterable[_Choice], fit: Callable[[Task, _Choice], Fitted]
) -> tuple[_Choice, dict[str, Any]]:
    """The choice that predicts held-out training entries best, and the scores of all."""
    choices = list(choices)
    if len(choices) == 1:
        return choices[0], {"chosen": choices[0]}
    kept, held = hold_out(task)
    scores = [score(held, fit(kept, choice).predict(held.indices), task.binary) for choice in choices]
    best = choices[int(np.argmax(scores))]
    return best, {
        "chosen": best,
        "validation": [[choice, value] for choice, value in zip(choices, scores, strict=True)],
    }


def choose_and_stop(
    task: Task,
    choices: Iterable[_Choice],
    fits: Callable[[Task, _Choice], Iterator[tuple[int, Fitted]]],
    patience: int = 3,
) -> Fitted:
    """The fit to all training entries by the choice, and until the step, that predict held-out ones best.

    :param fits: yields steps and what is fitted after them.
    :param patience: looks without a better prediction after which a choice is left.
    """
    kept, held = hold_out(task)
    looks: list[tuple[float, _Choice, int]] = []
    for choice in choices:
        best, waited = -math.inf, 0
        for step, fitted in fits(kept, choice):
            value = score(held, fitted.predict(held.indices), task.binary)
            looks.append((value, choice, step))
            best, waited = max(best, value), 0 if value > best else waited + 1
            if waited == patience:
                break
    _, choice, last = max(looks, key=lambda look: look[0])
    fitted = next(fitted for step, fitted in fits(task, choice) if step == last)
    details = {"chosen": choice, "steps": last, "validation": [[choice, step, value] for value, choice, step in looks]}
    return replace(fitted, details=details)
