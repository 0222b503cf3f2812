"""What an evaluation costs on T workers, with the constants that `benchmarks/workers.py` measured. See docs/scaling.md."""

from dataclasses import dataclass
from typing import Any

#: What predictions are made for: entries, and parameters at rank 3 (the click log has 179K x 81K x 35 x 355 entities).
PROBLEMS = {"the paper's click log": (97_000, 3 * 260_390), "1e9 entries": (10**9, 3 * 260_390)}
#: Networks, in Gbit/s.
NETWORKS = (10, 100)


@dataclass(frozen=True)
class CostModel:
    """seconds(T) = fixed + entry N / T + allreduce(T, p^2 + p) + allreduce(T, parameters)"""

    inducing: int
    fixed: float  # seconds of an evaluation without entries
    entry: float  # seconds an entry, on one core
    hop: float  # seconds of a message between neighbours

    @classmethod
    def of(cls, workers: dict[str, Any]) -> "CostModel":
        """The constants in results/workers.json."""
        fixed = workers["seconds of an evaluation without entries"]
        return cls(
            inducing=workers["inducing"],
            fixed=fixed,
            entry=(workers["median seconds"]["1"] - fixed) / workers["entries"],
            hop=1e-6 * workers["allreduce microseconds"]["2"]["1"] / 2,  # a message to a neighbour and back is two
        )

    def seconds(self, workers: int, entries: int, parameters: int, gbit: float) -> float:
        """One evaluation."""
        statistics = self.inducing**2 + self.inducing
        together = sum(self._allreduce(workers, numbers, gbit) for numbers in (statistics, parameters))
        return self.fixed + self.entry * entries / workers + together

    def _allreduce(self, workers: int, numbers: int, gbit: float) -> float:
        """A ring: T - 1 messages to add up, T - 1 to hand the sums on, each of a T-th of the numbers."""
        return 2 * (workers - 1) * self.hop + 2 * (workers - 1) / workers * 64 * numbers / (gbit * 1e9)
