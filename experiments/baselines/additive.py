"""Additive models: a bias for each entity, and what the number of its entries adds."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor

from baselines.base import Array, Fitted, Task
from baselines.linear import Logistic
from baselines.tools import choose, columns, one_hot, require_binary


@dataclass(frozen=True)
class AdditiveBiases:
    """A mean and a shrunken bias for each entity: ridge regression on one-hot modes, or for labels :class:`Logistic`.

    :param penalties: of squared biases; one is chosen on held-out training entries. Labels have those of :class:`Logistic`.
    """

    name: ClassVar[str] = "additive"
    penalties: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

    def fit(self, task: Task) -> Fitted:
        if task.binary:
            return Logistic().fit(task)
        penalty, details = choose(task, self.penalties, self._fit)
        return Fitted(self._fit(task, penalty).predict, details=details)

    def _fit(self, task: Task, penalty: float) -> Fitted:
        model = Ridge(alpha=penalty, solver="sparse_cg", tol=1e-6)
        model.fit(one_hot(task.train.indices, task.train.shape), task.train.values.double().numpy())
        return Fitted(lambda indices: model.predict(one_hot(indices, task.train.shape)))


@dataclass(frozen=True)
class CountsLogistic:
    """Logistic regression on one-hot modes and on the log counts of the entry's entities.

    A count is the number of *other* training entries that the entity has: ``log1p(count - 1)`` for a training entry and
    ``log1p(count)`` for a new one. Each mode's column is standardised over the training entries.

    :param inverse_penalties: of which one is chosen on held-out training entries.
    """

    name: ClassVar[str] = "counts_logistic"
    inverse_penalties: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    iterations: int = 1000

    def fit(self, task: Task) -> Fitted:
        require_binary(self.name, task)
        C, details = choose(task, self.inverse_penalties, self._fit)
        return Fitted(self._fit(task, C).predict, True, details)

    def _fit(self, task: Task, C: float) -> Fitted:
        train = task.train
        counts = [np.bincount(at, minlength=d) for at, d in zip(columns(train.indices), train.shape, strict=True)]
        seen = _log_counts(counts, train.indices, known=1)
        centre, spread = seen.mean(axis=0), seen.std(axis=0)
        spread[spread == 0.0] = 1.0

        def features(indices: Tensor, logs: Array) -> scipy.sparse.csr_matrix:
            scaled = scipy.sparse.csr_matrix((logs - centre) / spread)
            return scipy.sparse.hstack([one_hot(indices, train.shape), scaled], format="csr")

        model = LogisticRegression(C=C, max_iter=self.iterations)
        model.fit(features(train.indices, seen), train.values.numpy() > 0.5)
        return Fitted(lambda new: model.predict_proba(features(new, _log_counts(counts, new)))[:, 1], True)


def _log_counts(counts: list[Array], indices: Tensor, known: int = 0) -> Array:
    """`[n, K]`: log1p of the number of entries of each entity.

    :param known: how many of them are the entry itself.
    """
    return np.stack([np.log1p(count[at] - known) for count, at in zip(counts, columns(indices), strict=True)], axis=1)
