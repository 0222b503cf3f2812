"""Methods without a model: what every other one has to beat."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from baselines.base import Array, Fitted, Task
from baselines.tools import columns, nonzeros


@dataclass(frozen=True)
class Mean:
    """The mean of the training values, wherever it is asked."""

    name: ClassVar[str] = "mean"

    def fit(self, task: Task) -> Fitted:
        mean = float(task.train.values.double().mean())
        return Fitted(lambda indices: np.full(len(indices), mean), task.binary, {"mean": mean})


@dataclass(frozen=True)
class Popularity:
    """The sum over modes of log(1 + the entity's number of training nonzeros).

    Real values are regressed on the K logarithms; there a nonzero is not counted for itself, as it would not be if
    it were a test entry.
    """

    name: ClassVar[str] = "popularity"

    def fit(self, task: Task) -> Fitted:
        train, found = task.train, columns(nonzeros(task.train).indices)
        counts = [np.bincount(rows, minlength=d) for rows, d in zip(found, train.shape, strict=True)]

        def features(indices: Tensor, less: Array | float = 0.0) -> Array:
            of = zip(counts, columns(indices), strict=True)
            return np.stack([np.log1p(count[rows] - less) for count, rows in of], axis=1)

        if task.binary:
            return Fitted(lambda indices: features(indices).sum(axis=1))
        y = train.values.double().numpy()
        inputs = np.column_stack([np.ones(len(y)), features(train.indices, less=(y != 0).astype(float))])
        line, *_ = np.linalg.lstsq(inputs, y)
        return Fitted(lambda indices: line[0] + features(indices) @ line[1:], details={"line": line.tolist()})
