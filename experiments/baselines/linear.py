"""Linear models and the factorisation machine on one-hot modes, as click-through rates are commonly predicted."""

import io
from contextlib import redirect_stderr
from dataclasses import dataclass
from typing import Any, ClassVar

import myfm
import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from torch import Tensor

from baselines.base import Array, Fitted, Task
from baselines.tools import choose, one_hot, require_binary

# Levels of how often an entity occurs, two for each doubling: the last one is of 740,000 entries and more.
_LEVELS = 40


@dataclass(frozen=True)
class Logistic:
    """Logistic regression (scikit-learn).

    :param inverse_penalties: of which one is chosen on held-out training entries.
    """

    name: ClassVar[str] = "logistic"
    inverse_penalties: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    iterations: int = 1000

    def fit(self, task: Task) -> Fitted:
        require_binary(self.name, task)
        C, details = choose(task, self.inverse_penalties, self._fit)
        return Fitted(self._fit(task, C).predict, True, details)

    def _fit(self, task: Task, C: float) -> Fitted:
        model = LogisticRegression(C=C, max_iter=self.iterations)
        _train(model, task)
        return Fitted(lambda indices: model.predict_proba(one_hot(indices, task.train.shape))[:, 1], True)


@dataclass(frozen=True)
class LinearSVM:
    """The linear support vector machine (scikit-learn); its scores are signed distances.

    :param inverse_penalties: of which one is chosen on held-out training entries.
    """

    name: ClassVar[str] = "linear_svm"
    inverse_penalties: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0)
    iterations: int = 10_000

    def fit(self, task: Task) -> Fitted:
        require_binary(self.name, task)
        C, details = choose(task, self.inverse_penalties, self._fit)
        return Fitted(self._fit(task, C).predict, details=details)

    def _fit(self, task: Task, C: float) -> Fitted:
        model = LinearSVC(C=C, max_iter=self.iterations, dual="auto", random_state=task.seed)
        _train(model, task)
        return Fitted(lambda indices: model.decision_function(one_hot(indices, task.train.shape)))


def _train(model: Any, task: Task) -> None:
    model.fit(one_hot(task.train.indices, task.train.shape), task.train.values.numpy() > 0.5)


@dataclass(frozen=True)
class FactorizationMachine:
    """The Bayesian factorisation machine by Gibbs sampling (myFM), with one scale a mode.

    Its regularisation is sampled, so there is none to choose; labels have a probit link.

    :param occurrences: whether how often an entity occurs, in 40 levels, is a further one-hot mode for each mode.
    :param samples: of the chain.
    :param kept: how many of the last ones are averaged.
    """

    name: ClassVar[str] = "fm"
    occurrences: bool = False
    samples: int = 200
    kept: int = 100

    def fit(self, task: Task) -> Fitted:
        train = task.train
        levels = [
            _level(torch.bincount(column.long(), minlength=d))
            for column, d in zip(train.indices.T, train.shape, strict=True)
            if self.occurrences
        ]
        shape = train.shape + (_LEVELS,) * len(levels)

        def told(indices: Tensor) -> Tensor:
            columns = [level[indices[:, mode].long()] for mode, level in enumerate(levels)]
            return torch.cat([indices.long(), *(column[:, None] for column in columns)], dim=1)

        features, y = one_hot(told(train.indices), shape), train.values.double().numpy()
        model = (myfm.MyFMClassifier if task.binary else myfm.MyFMRegressor)(task.rank, random_seed=task.seed)
        with redirect_stderr(io.StringIO()):  # its bar
            model.fit(
                features,
                y > 0.5 if task.binary else y,
                n_iter=self.samples,
                n_kept_samples=min(self.kept, self.samples),
                group_shapes=list(shape),
            )
        return Fitted(lambda indices: _predict(model, told(indices), shape), task.binary)


def _level(count: Tensor) -> Tensor:
    """The level `[d]` of entities that occur so often; one that does not occur is like one that occurs once."""
    return (2.0 * count.clamp(min=1).double().log2()).round().long().clamp(max=_LEVELS - 1)


def _predict(model: Any, indices: Tensor, shape: tuple[int, ...]) -> Array:
    features = one_hot(indices, shape)
    found = model.predict_proba(features) if isinstance(model, myfm.MyFMClassifier) else model.predict(features)
    return np.asarray(found, dtype=np.float64)
