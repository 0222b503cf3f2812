"""InfTucker: the tensor-variate Gaussian process of the whole tensor."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from baselines.base import Array, Fitted, Task
from baselines.multilinear import leading
from baselines.tensor_gp import KERNELS, TensorGP, along
from baselines.tools import choose, columns, dense
from gptf_gpytorch.distributed.threads import one_core_each


@dataclass(frozen=True)
class InfTucker:
    """InfTucker of the whole tensor, with 0 wherever there is no training entry.

    The factors have a standard normal prior, as ours have, and start at the leading singular vectors. They, the
    kernel's parameters, a constant mean and the noise climb the exact evidence of values, or the variational bound of
    labels (see :mod:`baselines.tensor_gp`), by Adam. The kernel is chosen on training entries, which are zeros while
    they are held out, as test entries are.

    :param steps: of the final fit; half as many choose the kernel.
    :param passes: of the labels' fixed point in each step, each of which begins where the last one ended.
    """

    name: ClassVar[str] = "inftucker"
    kernels: tuple[str, ...] = KERNELS
    steps: int = 60
    learning_rate: float = 0.1
    passes: int = 2
    max_cells: int = 20_000_000

    def fit(self, task: Task) -> Fitted:
        # Small matrices are not worth a second core.
        with one_core_each() if task.train.cells < 1_000_000 else nullcontext():
            kernel, details = choose(task, self.kernels, lambda part, name: self._fit(part, name, self.steps // 2))
            fitted = self._fit(task, kernel, self.steps)
        return Fitted(fitted.predict, details={**details, **fitted.details})

    def _fit(self, task: Task, kernel: str, steps: int) -> Fitted:
        tensor = dense(task, self.max_cells)
        ranks = [min(task.rank, d) for d in tensor.shape]
        start = [torch.from_numpy(basis * len(basis) ** 0.5) for basis in leading(tensor, ranks)]
        Y = torch.from_numpy(tensor)
        model = TensorGP(start, kernel, Y, task.binary)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        z: Tensor | None = None
        for _ in range(steps):
            optimizer.zero_grad()
            bound, _, z = model.bound(Y, model.tables(), z, self.passes)
            loss = -bound + 0.5 * torch.stack([table.square().sum() for table in model.factors]).sum()
            (loss / Y.numel()).backward()
            optimizer.step()
        with torch.no_grad():
            bound, alpha, _ = model.bound(Y, model.tables(), z, self.passes)
            posterior = (model.mean + along(model.covariances(model.tables()), alpha)).numpy()

        def predict(indices: Tensor) -> Array:
            return np.asarray(posterior[columns(indices)])

        return Fitted(predict, details={"bound": float(bound)})
