"""A fitted model, whatever its method: what its numbers mean, and its folder on the disk, where nothing can be executed."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from gptf_gpytorch.data.vocabulary import Vocabulary
from gptf_gpytorch.errors import CheckpointError
from gptf_gpytorch.training import checkpoints
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.objective import Scaling
from gptf_gpytorch.variational.prediction import Marginals

KIND = checkpoints.MODEL


@dataclass(frozen=True, kw_only=True)
class FittedModel(ABC):
    """A model and what its numbers mean: the units of its values, the names of its modes and the ids of its entities."""

    config: TrainConfig
    scaling: Scaling
    mode_names: tuple[str, ...]
    vocabularies: tuple[Vocabulary | None, ...]
    value_name: str = "value"

    # The class of each method. `saved` imports all of them, so that `load` finds the one that a folder needs.
    _classes: ClassVar[dict[str, type["FittedModel"]]] = {}

    def __init_subclass__(cls, method: str, **options: Any) -> None:
        super().__init_subclass__(**options)
        FittedModel._classes[method] = cls

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The number of entities of each mode."""

    @property
    @abstractmethod
    def likelihood(self) -> Any:
        """Of values in the units of training."""

    @abstractmethod
    def latent(self, indices: Tensor, chunk_size: int = 3000) -> Marginals:
        """The mean and variance of f at indices `[n, K]`, in the units of training; -1 is an entity that is not known."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What the model is, for people and JSON."""

    @abstractmethod
    def state(self) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        """The tensors of the model, and what else of it :meth:`restored` needs, as JSON can hold it."""

    @classmethod
    @abstractmethod
    def restored(cls, tensors: dict[str, Tensor], run: dict[str, Any], common: dict[str, Any]) -> "FittedModel":
        """What :meth:`state` returned; ``common`` are the fields that all models have."""

    @property
    def binary(self) -> bool:
        """Whether values are labels."""
        return self.config.likelihood == "probit"

    def save(self, folder: str | Path) -> None:
        """Write the model."""
        vocabularies = {
            f"mode-{mode}.arrow": vocabulary.save
            for mode, vocabulary in enumerate(self.vocabularies)
            if vocabulary is not None
        }
        tensors, content = self.state()
        run = {
            "kind": KIND,
            "config": self.config.to_dict(),
            "shape": list(self.shape),
            "mode_names": list(self.mode_names),
            "value_name": self.value_name,
            "scaling": [self.scaling.centre, self.scaling.spread],
            **content,
        }
        checkpoints.save(Path(folder), tensors, run, vocabularies)

    @classmethod
    def load(cls, folder: str | Path) -> "FittedModel":
        """A model that was saved, or the ``model`` of a run's folder; of the class of its method."""
        folder = Path(folder)
        if not (folder / "manifest.json").exists():
            model, steps = checkpoints.standing(folder / KIND), checkpoints.Checkpoints(folder).steps()
            if model.is_dir():
                folder = model
            elif steps:
                raise CheckpointError(
                    f"{folder} must hold a model. Got a run that is not finished, at step {steps[-1]}."
                )
        if not checkpoints.standing(folder).is_dir():
            what = "a file" if folder.exists() else "nothing there"
            raise CheckpointError(f"A saved model, or the output of a run, must be a folder. Got {folder}: {what}.")
        tensors, run = checkpoints.load(folder)
        if not isinstance(run, dict) or run.get("kind") != KIND:
            raise CheckpointError(f"{folder} must be a saved model. Got {_kind(run)}.")
        try:
            # Models were of one method before there were two.
            config = TrainConfig.from_dict({"method": "paper", **run["config"]}, str(folder / "run.json"))
            common = {
                "config": config,
                "scaling": Scaling(*run["scaling"]),
                "mode_names": tuple(run["mode_names"]),
                "vocabularies": tuple(_vocabulary(folder / f"mode-{mode}.arrow") for mode in range(len(run["shape"]))),
                "value_name": run["value_name"],
            }
            return cls._classes[config.method].restored(tensors, run, common)
        except KeyError as error:
            raise CheckpointError(f"{folder / 'run.json'} must hold {error}. Got none.") from error
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(f"{folder} must be a model of this version. Got: {error}.") from error


def _kind(run: Any) -> str:
    return f"a {run['kind']}" if isinstance(run, dict) and "kind" in run else "a folder of another kind"


def _vocabulary(path: Path) -> Vocabulary | None:
    return Vocabulary.load(path) if path.exists() else None
