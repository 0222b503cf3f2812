"""The state of a run: what a checkpoint holds, and whether it is one of this run."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from gptf_gpytorch.errors import CheckpointError
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.history import History
from gptf_gpytorch.training.optimizers import Optimizer, Point
from gptf_gpytorch.variational.elbo import CollapsedELBO
from gptf_gpytorch.wording import option

# A run may be resumed with other values of these: they say when to stop, not where to go.
_MAY_CHANGE = {
    "max_iterations",
    "max_seconds",
    "checkpoint_seconds",
    "keep",
    "tolerance",
    "gradient_tolerance",
}


@dataclass
class Progress:
    """Where a run is: all that has to be saved beside the model to go on as if nothing had happened."""

    point: Point
    iteration: int = 0
    seconds: float = 0.0
    best: Tensor | None = None
    best_score: float = -math.inf
    best_iteration: int = 0
    rollbacks: int = 0
    history: History = field(default_factory=History)

    def tensors(self) -> dict[str, Tensor]:
        """The part that is tensors."""
        best = {} if self.best is None else {"best": self.best}
        return {"x": self.point.x, "gradient": self.point.gradient, **best}

    def to_dict(self) -> dict[str, Any]:
        """The part that is JSON."""
        return {
            "value": self.point.value.hex(),
            "iteration": self.iteration,
            "seconds": self.seconds,
            "best_score": self.best_score.hex(),
            "best_iteration": self.best_iteration,
            "rollbacks": self.rollbacks,
            "history": self.history.to_dict(),
        }

    @classmethod
    def from_saved(cls, tensors: dict[str, Tensor], content: dict[str, Any]) -> "Progress":
        """What :meth:`tensors` and :meth:`to_dict` returned."""
        point = Point(tensors["x"], float.fromhex(content["value"]), tensors["gradient"])
        return cls(
            point=point,
            iteration=content["iteration"],
            seconds=content["seconds"],
            best=tensors.get("best"),
            best_score=float.fromhex(content["best_score"]),
            best_iteration=content["best_iteration"],
            rollbacks=content["rollbacks"],
            history=History.from_dict(content["history"]),
        )

    def copy(self) -> "Progress":
        """This moment, whatever happens later."""
        return replace(self, history=History(list(self.history.steps), list(self.history.notes)))


class Snapshot(NamedTuple):
    """A state of a run that can be written, committed and shared, whatever method trains.

    :param iteration: the number of the step.
    :param pack: its tensors, and what of it is JSON.
    :param score: what the best state has most of; None if it has none.
    """

    iteration: int
    pack: Callable[[], tuple[dict[str, Tensor], dict[str, Any]]]
    score: float | None = None


def snapshot(mll: CollapsedELBO, optimizer: Optimizer, progress: Progress, patience: int) -> Snapshot:
    """This moment of a run on the bound; a step puts new tensors into the optimiser and the progress, and leaves the old ones."""
    parameters = {name: tensor.detach().clone() for name, tensor in mll.state_dict().items()}
    optimizer, progress = copy.copy(optimizer), progress.copy()
    score = progress.history.steps[-1].score(patience) if progress.history.steps else None
    return Snapshot(progress.iteration, lambda: (pack(parameters, optimizer, progress), progress.to_dict()), score)


def pack(mll: Mapping[str, Tensor], optimizer: Optimizer, progress: Progress) -> dict[str, Tensor]:
    """All tensors of a state.

    :param mll: the state dict of the bound.
    """
    tensors = {f"mll.{name}": tensor for name, tensor in mll.items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in optimizer.state().items()}
    return tensors | {f"progress.{name}": tensor for name, tensor in progress.tensors().items()}


def unpack(
    tensors: Mapping[str, Tensor], content: dict[str, Any], mll: CollapsedELBO, optimizer: Optimizer
) -> Progress:
    """Take back what :func:`pack` and :meth:`Progress.to_dict` returned."""
    parts: dict[str, dict[str, Tensor]] = {"mll": {}, "optimizer": {}, "progress": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = tensor
    mll.load_state_dict(parts["mll"])
    optimizer.load(parts["optimizer"])
    return Progress.from_saved(parts["progress"], content)


def describe(config: TrainConfig, shape: tuple[int, ...], digest: str) -> dict[str, Any]:
    """What a run is, as its checkpoints say it."""
    return {"kind": "checkpoint", "config": config.to_dict(), "shape": list(shape), "data": digest}


def check_same(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """An error unless two descriptions are of the same run."""
    if saved.get("kind") != now["kind"]:
        raise CheckpointError(f"A run must be resumed from a {now['kind']}. Got a {saved.get('kind')}.")
    unknown = [name for name in saved["config"] if name not in now["config"]]
    if unknown:
        raise CheckpointError(
            f"The run must have begun with the options of this version. Got {unknown[0]!r}, which it does not know."
        )
    # It may have begun before there was an option; there was one method before there were two.
    then = {**TrainConfig().to_dict(), "method": "paper", **saved["config"]}
    pairs = {name: (then[name], value) for name, value in now["config"].items() if name not in _MAY_CHANGE}
    pairs |= {name: (saved[name], now[name]) for name in ("shape", "data")}
    for name, (began, value) in pairs.items():
        value = list(value) if isinstance(value, tuple) else value  # as JSON has it
        if began != value:
            named = option(name) if name in now["config"] else name
            raise CheckpointError(f"{named} must be what the run began with: {began!r}. Got {value!r}.")
