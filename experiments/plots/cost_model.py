"""What an evaluation costs on T workers, with the constants that `benchmarks/workers.py` measured. See docs/scaling.md."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """What a prediction is made for."""

    entries: int
    parameters: int
    dimensions: int  # of an entry's concatenated factors


# Both at rank 3, with the entities of the paper's click log: 179K x 81K x 35 x 355.
PROBLEMS = {
    "the paper's click log": Problem(97_000, 3 * 260_390, 12),
    "1e9 entries": Problem(10**9, 3 * 260_390, 12),
}
#: Networks, in Gbit/s.
NETWORKS = (10, 100)


@dataclass(frozen=True)
class CostModel:
    """seconds(T) = fixed + entry N / T + allreduce(T, p^2 + p) + allreduce(T, parameters)"""

    inducing: int
    fixed: float  # seconds of an evaluation without entries
    flop: float  # seconds of one of an entry's operations, on one core
    wait: float  # seconds until all workers have seen that there is something to add
    hop: float  # seconds of a message between neighbours

    @classmethod
    def of(cls, workers: dict[str, Any]) -> "CostModel":
        """The constants in results/workers.json."""
        few, many = workers["few entries"], workers["entries"]
        seconds = workers["median seconds of few entries"], workers["median seconds"]["1"]
        entry = (seconds[1] - seconds[0]) / (many - few)
        span = 1e-6 * workers["microseconds of a collective, without waiting for it"]
        return cls(
            inducing=workers["inducing"],
            fixed=seconds[0] - entry * few,
            flop=entry / _flops(workers["inducing"], workers["dimensions"]),
            wait=max(1e-6 * workers["allreduce microseconds"]["2"]["1"] - span, 0.0),
            hop=span / 2,  # two workers: a message to the neighbour, and one back
        )

    def seconds(self, workers: int, problem: Problem, gbit: float) -> float:
        """One evaluation."""
        statistics = self.inducing**2 + self.inducing
        together = sum(self._allreduce(workers, numbers, gbit) for numbers in (statistics, problem.parameters))
        entry = self.flop * _flops(self.inducing, problem.dimensions)
        return self.fixed + entry * problem.entries / workers + together

    def _allreduce(self, workers: int, numbers: int, gbit: float) -> float:
        """A ring: T - 1 messages to add up, T - 1 to hand the sums on, each of a T-th of the numbers."""
        if workers == 1:
            return 0.0
        return self.wait + 2 * (workers - 1) * self.hop + 2 * (workers - 1) / workers * 64 * numbers / (gbit * 1e9)


def _flops(p: int, dimensions: int) -> float:
    """The operations of an entry, there and back."""
    return 4.0 * p * p + 8.0 * p * dimensions
