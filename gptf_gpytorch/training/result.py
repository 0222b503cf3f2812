"""What comes of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.training.history import History
from gptf_gpytorch.training.saved import FittedModel


@dataclass(frozen=True)
class Result:
    """What came of a run."""

    fitted: FittedModel
    reason: str  # why it stopped
    history: History
    seconds: float  # of training, those before an interruption included
    #: Seconds of this call: data, start, steps, held_out (their likelihood at every step), finish, saving; and total.
    timings: Mapping[str, float]
    held_out: TensorEntries | None = None  # of the training set

    @property
    def model(self) -> Any:
        """The model, with q(v) up to date, in evaluation mode."""
        return self.fitted.model

    @property
    def likelihood(self) -> Any:
        """The likelihood."""
        return self.fitted.mll.likelihood

    @property
    def bound(self) -> float:
        """The bound of an entry at the state that was kept."""
        return self.summary["bound"]  # type: ignore[no-any-return]

    @property
    def summary(self) -> dict[str, Any]:
        """The final numbers; the bound and the likelihood of the held-out entries are those of the state that was kept."""
        kept = self.history.kept
        return {
            "bound": float(sum(self.fitted.mll.terms.values())) / self.fitted.mll.num_data,
            "steps": self.history.steps[-1].iteration if self.history.steps else 0,
            "seconds": self.seconds,
            "reason": self.reason,
            "held_out": None if kept is None else kept.held_out,
        }
