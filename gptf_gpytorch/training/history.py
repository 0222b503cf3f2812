"""The log of a run: one record a step."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import gpytorch
import torch

from gptf_gpytorch.training.optimizers import Point
from gptf_gpytorch.variational.elbo import CollapsedELBO


@dataclass(frozen=True)
class Step:
    """The state after a step."""

    iteration: int
    bound: float  # of an entry
    terms: Mapping[str, float]  # of an entry: they add up to the bound
    gradient_norm: float
    lengthscales: tuple[float, ...]
    outputscale: float | None
    noise: float | None  # of the values as the model sees them
    lambda_passes: int | None
    seconds: float  # since the beginning, interruptions left out
    entries_per_second: float  # entries of all workers times evaluations
    held_out: float | None  # mean log predictive density of the held-out entries

    def score(self, patience: int) -> float:
        """What the best state has most of: with patience the likelihood of the held-out entries, else the bound."""
        return self.bound if self.held_out is None or not patience else self.held_out

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def of(
        cls,
        mll: CollapsedELBO,
        point: Point,
        *,
        iteration: int,
        seconds: float,
        entries_per_second: float,
        held_out: float | None,
    ) -> "Step":
        """The record of a point at which the bound was just evaluated."""
        kernel = mll.model.covar_module
        base = getattr(kernel, "base_kernel", kernel)
        scales = getattr(base, "lengthscale", None)
        gaussian = isinstance(mll.likelihood, gpytorch.likelihoods.GaussianLikelihood)
        with torch.no_grad():
            return cls(
                iteration=iteration,
                bound=-point.value,
                terms={name: float(term) / mll.num_data for name, term in mll.terms.items()},
                gradient_norm=math.sqrt(point.gradient @ point.gradient),
                lengthscales=() if scales is None else tuple(scales.reshape(-1).tolist()),
                outputscale=float(kernel.outputscale) if isinstance(kernel, gpytorch.kernels.ScaleKernel) else None,
                noise=float(mll.likelihood.noise) if gaussian else None,
                lambda_passes=mll.solution.passes if mll.solution else None,
                seconds=seconds,
                entries_per_second=entries_per_second,
                held_out=held_out,
            )


@dataclass(frozen=True)
class Kept:
    """The state that became the model."""

    iteration: int  # 0 is the start
    bound: float  # of an entry
    held_out: float | None  # mean log predictive density of the held-out entries


@dataclass
class History:
    """All steps of a run, what else happened, and, when it is over, the state that was kept."""

    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kept: Kept | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        kept = None if self.kept is None else asdict(self.kept)
        return {"steps": [step.to_dict() for step in self.steps], "notes": list(self.notes), "kept": kept}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "History":
        """What :meth:`to_dict` returned."""
        steps = [Step(**{**step, "lengthscales": tuple(step["lengthscales"])}) for step in content["steps"]]
        kept = content.get("kept")  # not there in what the first versions saved
        return cls(steps, list(content["notes"]), None if kept is None else Kept(**kept))
