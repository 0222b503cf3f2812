"""One evaluation of either bound: the sums over the entries of all workers, lambda where there is one, and q(v)."""

import warnings
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gptf_gpytorch.distributed.communicator import Communicator
from gptf_gpytorch.distributed.sharded_sum import sharded_sum, total
from gptf_gpytorch.errors import InputError, LambdaWarning, NumericalError
from gptf_gpytorch.variational.bounds import GaussianBound, ProbitBound, WhitenedPosterior, theorem_1, theorem_2
from gptf_gpytorch.variational.fixed_point import Solution, fixed_point, newton
from gptf_gpytorch.variational.natural import remembering_1, remembering_2
from gptf_gpytorch.variational.paths import Maps
from gptf_gpytorch.variational.shards import EntryShard
from gptf_gpytorch.variational.statistics import CurvatureStatistics, GaussianStatistics, ProbitStatistics

Solver = Literal["newton", "fixed_point"]


def default_tolerance(num_data: int, dtype: torch.dtype) -> float:
    """The largest gradient of the bound with respect to eta that counts as solved; rounding grows with the sums."""
    return 1e-8 * max(1.0, num_data / 1e5) if dtype == torch.float64 else 1e-3


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation is of. Its collectives are those of all workers.

    :param shard: this worker's entries.
    :param maps: from its chunks to statistics.
    :param q: mean and root of q(v), whitened, as it was last written: where lambda starts, and what is remembered.
    :param forget: the share of it that is forgotten; 1 collapses the bound.
    """

    shard: EntryShard
    maps: Maps
    communicator: Communicator
    batch_shape: torch.Size
    q: tuple[Tensor, Tensor]
    forget: float = 1.0

    def gaussian(self, beta: Tensor) -> tuple[GaussianBound, WhitenedPosterior]:
        """The bound of Theorem 1 at a noise precision, and q(v)."""
        statistics = GaussianStatistics(*sharded_sum(self.maps.gaussian(), self.shard, self.communicator))
        self._check(statistics)
        if self.forget < 1.0:
            return remembering_1(statistics, beta, *self._last_q(), self.forget)
        return theorem_1(statistics, beta)

    def probit(
        self, solver: Solver, tolerance: float, max_passes: int
    ) -> tuple[ProbitBound, WhitenedPosterior, Solution]:
        """The bound of Theorem 2 where lambda is solved, or the one that remembers, where it is not; q(v), and lambda.

        :param tolerance: the largest gradient that counts as solved.
        :param max_passes: the most maps over all entries that one solve may take.
        """
        eta, root = self._last_q()
        if self.forget < 1.0:
            statistics = self._probit_sums(eta)
            solution = Solution(eta, _gradient_norm(statistics, eta), passes=1, converged=False)
            return *remembering_2(statistics, eta, root, self.forget), solution
        solution = self._solve(solver, eta, tolerance, max_passes, foresee=True)
        statistics = self._probit_sums(solution.eta)
        if solution.expected:  # this map has looked at the last step
            norm = _gradient_norm(statistics, solution.eta)
            solution = replace(solution, gradient_norm=norm, converged=norm <= tolerance)
            if not solution.converged:
                again = self._solve(solver, solution.eta, tolerance, max_passes)
                solution = replace(again, passes=solution.passes + 1 + again.passes)
                statistics = self._probit_sums(solution.eta)
        if not solution.converged:
            warnings.warn(
                f"lambda must be solved to a gradient of at most {tolerance:g}. "
                f"Reached {solution.gradient_norm:g} after {solution.passes} passes of {solver}.",
                LambdaWarning,
                stacklevel=2,
            )
        return *theorem_2(statistics, solution.eta), solution

    def _probit_sums(self, eta: Tensor) -> ProbitStatistics:
        statistics = ProbitStatistics(*sharded_sum(self.maps.probit(eta), self.shard, self.communicator))
        self._check(statistics)
        return statistics

    def _solve(
        self, solver: Solver, start: Tensor, tolerance: float, max_passes: int, *, foresee: bool = False
    ) -> Solution:
        """lambda, whitened."""

        def evaluate(eta: Tensor) -> CurvatureStatistics:
            return CurvatureStatistics(*total(self.maps.curvature(eta), self.shard, self.communicator))

        if solver == "newton":
            return newton(evaluate, start, tolerance=tolerance, max_passes=max_passes, foresee=foresee)
        statistics = ProbitStatistics(*total(self.maps.probit(start), self.shard, self.communicator))
        return fixed_point(evaluate, statistics.W, start, tolerance=tolerance, max_passes=max_passes)

    def _last_q(self) -> tuple[Tensor, Tensor]:
        """Mean and root of q(v) for this batch; the prior's, if what was written is of a larger one."""
        mean, root = (number.detach() for number in self.q)
        if mean.dim() - 1 > len(self.batch_shape):
            mean, root = torch.zeros_like(mean), torch.eye(root.size(-1), dtype=root.dtype, device=root.device)
            mean = mean[(0,) * (mean.dim() - 1)]
        p = mean.size(-1)
        return mean.expand(*self.batch_shape, p).clone(), root.expand(*self.batch_shape, p, p).clone()

    def _check(self, statistics: GaussianStatistics | ProbitStatistics) -> None:
        # Exact in double precision; single precision cannot count beyond 2^24.
        shard = self.shard
        entries = int(statistics.entries) // shard.copies
        if abs(entries - shard.total) > shard.total * torch.finfo(statistics.entries.dtype).eps:
            raise InputError(
                f"num_data must be the number of entries of all workers, {shard.total}. "
                f"Got {entries} entries: pass all of them at every evaluation, each on one worker only."
            )
        for name, value in statistics._asdict().items():
            if not bool(value.isfinite().all()):
                raise NumericalError(
                    f"The statistics of the entries must be finite. Got NaN or infinity in {name}: a parameter "
                    "has left its range; take a smaller step, or start again from the last good state."
                )


def _gradient_norm(statistics: ProbitStatistics, eta: Tensor) -> float:
    """The largest norm of a batch."""
    return float((statistics.a5.detach() - eta).norm(dim=-1).max())
