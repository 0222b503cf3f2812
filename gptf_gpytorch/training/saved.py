"""A fitted model on the disk: one folder with everything that predictions need, and nothing that can be executed."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpytorch
import torch
from torch import Tensor

from gptf_gpytorch.data.vocabulary import Vocabulary
from gptf_gpytorch.distributed.communicator import Communicator
from gptf_gpytorch.errors import CheckpointError
from gptf_gpytorch.factors import with_levels_of
from gptf_gpytorch.likelihoods import ProbitLikelihood
from gptf_gpytorch.models import GPTF
from gptf_gpytorch.training import checkpoints
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.history import History
from gptf_gpytorch.training.objective import Scaling
from gptf_gpytorch.variational.elbo import CollapsedELBO
from gptf_gpytorch.variational.prediction import Marginals, marginals

KIND = checkpoints.MODEL


def build(
    config: TrainConfig, shape: tuple[int, ...], num_data: int, communicator: Communicator | None = None
) -> CollapsedELBO:
    """The model, likelihood and bound that a configuration describes, not yet initialised."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        ranks = (config.rank,) * len(shape) if isinstance(config.rank, int) else config.rank
        inducing = min(config.inducing, num_data)
        model = GPTF(
            shape,
            config.rank,
            inducing,
            kernel=config.make_kernel(with_levels_of(ranks, config.occurrences)),
            mean=config.make_mean(),
            draws=config.draws,
            biases=config.biases,
            occurrences=config.occurrences,
        )
        likelihood = ProbitLikelihood() if config.likelihood == "probit" else gpytorch.likelihoods.GaussianLikelihood()
        return CollapsedELBO(likelihood, model, num_data, communicator, chunk_size=config.chunk_size)


@dataclass(frozen=True, kw_only=True)
class FittedModel(ABC):
    """A model and what its numbers mean: the units of its values, the names of its modes and the ids of its entities."""

    config: TrainConfig
    scaling: Scaling
    mode_names: tuple[str, ...]
    vocabularies: tuple[Vocabulary | None, ...]
    value_name: str = "value"

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
        """A model that was saved, or the ``model`` of a run's folder."""
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
            return MODELS[config.method].restored(tensors, run, common)
        except KeyError as error:
            raise CheckpointError(f"{folder / 'run.json'} must hold {error}. Got none.") from error
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(f"{folder} must be a model of this version. Got: {error}.") from error


@dataclass(frozen=True, kw_only=True)
class PaperModel(FittedModel):
    """A model of the paper's method: factors, kernel and q(v)."""

    mll: CollapsedELBO
    history: History | None = None

    @property
    def model(self) -> GPTF:
        """The model."""
        model: GPTF = self.mll.model
        return model

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of entities of each mode."""
        return self.model.factors.entities

    @property
    def likelihood(self) -> Any:
        """See :attr:`FittedModel.likelihood`."""
        return self.mll.likelihood

    def latent(self, indices: Tensor, chunk_size: int = 3000) -> Marginals:
        """q(f) at indices `[n, K]`, in the units of training; the prior of f where an index is -1."""
        known = (indices >= 0).all(dim=1)
        if bool(known.all()):
            q = marginals(self.model, indices, chunk_size=chunk_size)
            return Marginals(q.mean, q.variance.clamp(min=0.0))
        q = marginals(self.model, indices[known], chunk_size=chunk_size)
        with torch.no_grad():
            factors = self.model.factors
            prior = self.model.forward(q.mean.new_zeros(1, factors.dim))
            spread = prior.variance + sum(factors.bias_variances())
            mean, variance = (moment.expand(len(indices)).clone() for moment in (prior.mean, spread))
            mean[known], variance[known] = q.mean, q.variance.clamp(min=0.0)
        return Marginals(mean, variance)

    def state(self) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        """See :meth:`FittedModel.state`; q(v) must be up to date."""
        self.mll.strategy.ensure_fresh()
        return self.mll.state_dict(), {
            "num_data": self.mll.num_data,
            "inducing": self.mll.strategy.inducing_points.size(-2),
            "history": None if self.history is None else self.history.to_dict(),
        }

    @classmethod
    def restored(cls, tensors: dict[str, Tensor], run: dict[str, Any], common: dict[str, Any]) -> "PaperModel":
        """See :meth:`FittedModel.restored`."""
        mll = build(common["config"], tuple(run["shape"]), run["num_data"])
        _check_shapes(mll, tensors)
        mll.load_state_dict(tensors)
        mll.model.eval()
        mll.likelihood.eval()
        history = None if run["history"] is None else History.from_dict(run["history"])
        return cls(**common, mll=mll, history=history)

    def describe(self) -> dict[str, Any]:
        """What the model is, for people and JSON."""
        last = self.history.steps[-1] if self.history and self.history.steps else None
        kept = self.history.kept if self.history else None
        return {
            "method": "paper",
            "likelihood": self.config.likelihood,
            "modes": dict(zip(self.mode_names, self.shape, strict=True)),
            "ranks": list(self.model.factors.ranks[: len(self.shape)]),
            "inducing": self.mll.strategy.inducing_points.size(-2),
            "kernel": self.config.kernel,
            "draws": self.config.draws,
            "biases": self.config.biases,
            "occurrences": self.config.occurrences,
            "entries": self.mll.num_data,
            "parameters": sum(p.numel() for p in self.mll.parameters()),
            "steps": last.iteration if last else None,
            "kept_step": kept.iteration if kept else None,
            "bound": kept.bound if kept else None,
            "held_out": kept.held_out if kept else None,
            "seconds": last.seconds if last else None,
        }


def _kind(run: Any) -> str:
    return f"a {run['kind']}" if isinstance(run, dict) and "kind" in run else "a folder of another kind"


def _check_shapes(mll: CollapsedELBO, tensors: dict[str, Tensor]) -> None:
    """The tensors of a model must be those of its shape, rank and configuration."""
    expected = {name: list(tensor.shape) for name, tensor in mll.state_dict().items()}
    for name, shape in expected.items():
        found = list(tensors[name].shape) if name in tensors else None
        if found != shape:
            raise ValueError(f"{name} of shape {found}, where run.json says {shape}")


def _vocabulary(path: Path) -> Vocabulary | None:
    return Vocabulary.load(path) if path.exists() else None


#: What a model of each method is; :mod:`~gptf_gpytorch.training.sampled_model` adds its own.
MODELS: dict[str, type[FittedModel]] = {"paper": PaperModel}
