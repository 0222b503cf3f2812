"""A model of the paper's method: factors, kernel and q(v)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch
from torch import Tensor

from gptf_gpytorch.distributed.communicator import Communicator
from gptf_gpytorch.factors import with_levels_of
from gptf_gpytorch.likelihoods import ProbitLikelihood
from gptf_gpytorch.models import GPTF
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.fitted import FittedModel
from gptf_gpytorch.training.history import History
from gptf_gpytorch.variational.elbo import CollapsedELBO
from gptf_gpytorch.variational.prediction import Marginals, marginals


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
class PaperModel(FittedModel, method="paper"):
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
        """See :attr:`~gptf_gpytorch.training.fitted.FittedModel.likelihood`."""
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
        """See :meth:`~gptf_gpytorch.training.fitted.FittedModel.state`; q(v) must be up to date."""
        self.mll.strategy.ensure_fresh()
        return self.mll.state_dict(), {
            "num_data": self.mll.num_data,
            "inducing": self.mll.strategy.inducing_points.size(-2),
            "history": None if self.history is None else self.history.to_dict(),
        }

    @classmethod
    def restored(cls, tensors: dict[str, Tensor], run: dict[str, Any], common: dict[str, Any]) -> "PaperModel":
        """See :meth:`~gptf_gpytorch.training.fitted.FittedModel.restored`."""
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


def _check_shapes(mll: CollapsedELBO, tensors: dict[str, Tensor]) -> None:
    """The tensors of a model must be those of its shape, rank and configuration."""
    expected = {name: list(tensor.shape) for name, tensor in mll.state_dict().items()}
    for name, shape in expected.items():
        found = list(tensors[name].shape) if name in tensors else None
        if found != shape:
            raise ValueError(f"{name} of shape {found}, where run.json says {shape}")
