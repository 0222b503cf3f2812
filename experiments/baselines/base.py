"""What every method of the tables looks like to ``run.py``: a task in, predictions out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from gptf_gpytorch import TensorEntries

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Task:
    """What a method may see of a split. Test entries are not in it.

    :param train: the entries that are trained on: nonzeros, and the zeros that the protocol samples.
    :param binary: whether values are labels in {0, 1}.
    :param rank: factors of an entity, for methods that have such.
    :param seed: of everything that is random.
    """

    train: TensorEntries
    binary: bool
    rank: int
    seed: int


@dataclass(frozen=True)
class Fitted:
    """A trained method.

    :param predict: indices `[n, K]` -> values `[n]`, or for labels a score that grows with the probability of 1.
    :param probabilities: whether the scores of labels are probabilities.
    :param details: what was chosen or reached, as JSON can hold it: a kernel, a learning rate, a bound.
    """

    predict: Callable[[Tensor], Array]
    probabilities: bool = False
    details: dict[str, Any] = field(default_factory=dict)


class Method(Protocol):
    """One row of a table; its options are the fields of a dataclass, as ``configs/*.toml`` names them."""

    @property
    def name(self) -> str:
        """What tables and configurations call it."""

    def fit(self, task: Task) -> Fitted:
        """Train on the task's entries."""
