"""g, the Gaussian process of the default model: told of the entities of an entry, it explains what is left.

Kernel parameters and inducing points maximise the collapsed bound of the residuals; after that g is linear in the whitened values
at its inducing points, which the sampler draws.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.training.minimise import minimise
from gptf_gpytorch.variational.bounds import theorem_1
from gptf_gpytorch.variational.statistics import GaussianStatistics

_JITTER = 1e-5
# Steps of L-BFGS: the kernel has a lengthscale for each mode, and the residuals are mostly noise.
_STEPS = 40


def inputs(table: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
    """What g is told `[n, K + K c]` of entries with stacked rows `[n, K]`: log counts `[n, K]`, and rows of a table `[A, c]`.

    An entity that does not occur (-1) is told by zeros, the mean of all others.
    """
    places = torch.where(rows < 0, len(table), rows.long())
    told = torch.cat([table, table.new_zeros(1, table.size(1))])[places]
    return torch.cat([counts, told.flatten(1)], dim=1)


@dataclass(frozen=True)
class Process:
    """An RBF process at fixed inducing points.

    Its input is what is known of the entities of an entry: how often each occurs, and the mean of its row.

    :param rows: `[A, c]` standardised means of the rows of entities; `[A, 0]` if counts are all that g is told.
    :param points: `[p, d]`, d = K + K c.
    :param lengthscale: `[d]`.
    :param outputscale: `[]`.
    """

    rows: Tensor
    points: Tensor
    lengthscale: Tensor
    outputscale: Tensor

    @classmethod
    def learnt(
        cls, rows: Tensor, inputs: Tensor, residuals: Tensor, noise_precision: float, points: int, seed: int
    ) -> "Process":
        """The process that explains residuals `[n]` at inputs `[n, d]` best, by the collapsed bound."""
        n, d = inputs.shape
        chosen = np.random.default_rng(seed).permutation(n)[:points]
        beta, zero = residuals.new_tensor(noise_precision), residuals.new_zeros(())

        def loss(points: Tensor, log_lengthscale: Tensor, log_outputscale: Tensor) -> Tensor:
            process = cls._within(rows, points, log_lengthscale, log_outputscale)
            w = process.features(inputs)
            a3 = n * process.outputscale
            statistics = GaussianStatistics(
                w.T @ w, w.T @ residuals, residuals @ residuals, a3, beta.new_tensor(n), zero
            )
            bound, _ = theorem_1(statistics, beta)
            return -sum(bound, zero) / n

        start = [inputs[chosen], inputs.new_full((d,), 0.5 * math.log(d)), inputs.new_tensor(math.log(0.1))]
        return cls._within(rows, *minimise(loss, start, _STEPS))

    @classmethod
    def _within(cls, rows: Tensor, points: Tensor, log_lengthscale: Tensor, log_outputscale: Tensor) -> "Process":
        """Parameters within bounds, beyond which a line search would meet a K_BB without a Cholesky factor.

        Inputs and values have a standard deviation of about 1.
        """
        lengthscale, outputscale = log_lengthscale.clamp(-4.0, 7.0).exp(), log_outputscale.clamp(-12.0, 4.0).exp()
        return cls(rows, points.clamp(-100.0, 100.0), lengthscale, outputscale)

    def features(self, inputs: Tensor) -> Tensor:
        """The features w `[n, p]`: k(B, x) whitened by the Cholesky factor of K_BB."""
        K_BB = self._kernel(self.points, self.points)
        L = torch.linalg.cholesky(K_BB + _JITTER * self.outputscale * torch.eye(len(K_BB), dtype=K_BB.dtype))
        w: Tensor = torch.linalg.solve_triangular(L, self._kernel(self.points, inputs), upper=False).T.contiguous()
        return w

    def left(self, features: Tensor) -> Tensor:
        """`[n]` k(x, x) - w'w: the variance that the inducing points do not explain."""
        return (self.outputscale - features.square().sum(1)).clamp(min=0.0)

    def _kernel(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = a / self.lengthscale, b / self.lengthscale
        squares = a.square().sum(1)[:, None] + b.square().sum(1) - 2.0 * a @ b.T
        return self.outputscale * torch.exp(-0.5 * squares.clamp(min=0.0))
