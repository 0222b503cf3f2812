"""InfTucker: the tensor-variate Gaussian process of the whole tensor."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import torch
from torch import Tensor

from baselines.base import Array, Fitted, Task
from baselines.multilinear import leading
from baselines.tensor_gp import TensorGP, along
from baselines.tools import choose_and_stop, columns, dense
from gptf_gpytorch.distributed.threads import one_core_each


@dataclass(frozen=True)
class InfTucker:
    """InfTucker of the whole tensor, with 0 wherever there is no training entry.

    The factors have a standard normal prior, as ours have, and start at the leading singular vectors. They, the
    kernel's parameters, a constant mean and the noise climb the exact evidence of values, or the variational bound of
    labels (see :mod:`baselines.tensor_gp`), by Adam. The kernel, where its lengthscale starts and the number of steps are
    chosen on training entries, which are zeros while they are held out, as test entries are: at the top of the evidence such
    zeros are fitted too. A lengthscale for each factor (``ard``) starts as ``rbf`` does and ends beside it after so few steps.

    :param reaches: of the lengthscale at the start, in units of the distance that factors of unit variance have from 0.
    :param steps: at most.
    :param every: how many steps there are between two looks at what is held out.
    :param passes: of the labels' fixed point in each step, each of which begins where the last one ended.
    """

    name: ClassVar[str] = "inftucker"
    kernels: tuple[str, ...] = ("rbf", "matern")
    reaches: tuple[float, ...] = (2.0, 4.0, 8.0)
    steps: int = 30
    every: int = 2
    learning_rate: float = 0.03
    passes: int = 2
    max_cells: int = 20_000_000

    def fit(self, task: Task) -> Fitted:
        # Small matrices are not worth a second core.
        with one_core_each() if task.train.cells < 1_000_000 else nullcontext():
            return choose_and_stop(task, product(self.kernels, self.reaches), self._fits)

    def _fits(self, task: Task, choice: tuple[str, float]) -> Iterator[tuple[int, Fitted]]:
        kernel, reach = choice
        tensor = dense(task, self.max_cells)
        ranks = [min(task.rank, d) for d in tensor.shape]
        start = [torch.from_numpy(basis * len(basis) ** 0.5) for basis in leading(tensor, ranks)]
        Y = torch.from_numpy(tensor)
        model = TensorGP(start, kernel, Y, task.binary, reach * task.rank**0.5)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        z: Tensor | None = None
        for step in range(self.steps + 1):
            optimizer.zero_grad()
            bound, alpha, z = model.bound(Y, model.tables(), z, self.passes)
            if step and step % self.every == 0:
                with torch.no_grad():
                    posterior = model.mean + along(model.covariances(model.tables()), alpha)
                yield step, _at_cells(posterior.numpy())
            loss = -bound + 0.5 * torch.stack([table.square().sum() for table in model.factors]).sum()
            (loss / Y.numel()).backward()
            optimizer.step()


def _at_cells(posterior: Array) -> Fitted:
    return Fitted(lambda indices: posterior[columns(indices)])
