"""What comes of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.training.fitted import FittedModel
from gptf_gpytorch.training.history import History
from gptf_gpytorch.training.paper_model import PaperModel
from gptf_gpytorch.training.sampled_model import SampledModel


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
        """The GPyTorch model of the paper's method, with q(v) up to date, in evaluation mode."""
        return self._paper.model

    @property
    def likelihood(self) -> Any:
        """The likelihood."""
        return self.fitted.likelihood

    @property
    def bound(self) -> float:
        """The bound of an entry at the state that was kept, of the paper's method."""
        mll = self._paper.mll
        return float(sum(mll.terms.values())) / mll.num_data

    @property
    def _paper(self) -> PaperModel:
        if not isinstance(self.fitted, PaperModel):
            raise InputError(
                "A GPyTorch model and its bound are those of method='paper'. Got a model that was sampled."
            )
        return self.fitted

    @property
    def summary(self) -> dict[str, Any]:
        """The final numbers; the bound and the scores of the held-out entries are those of the state that was kept."""
        common = {"seconds": self.seconds, "reason": self.reason}
        if isinstance(self.fitted, SampledModel):
            found = self.fitted.history["summary"]
            return {"steps": found["sweeps"], **common, "held_out": found["held_out"]}
        kept, steps = self.history.kept, self.history.steps
        return {
            "bound": self.bound,
            "steps": steps[-1].iteration if steps else 0,
            **common,
            "held_out": None if kept is None else kept.held_out,
        }
