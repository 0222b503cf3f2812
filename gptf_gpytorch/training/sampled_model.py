"""A model of the default method: chains and their weights, and what they say of entries."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import gpytorch
import torch
from torch import Tensor

from gptf_gpytorch.likelihoods import ProbitLikelihood
from gptf_gpytorch.multilinear import reference
from gptf_gpytorch.multilinear.covariates import Counts
from gptf_gpytorch.multilinear.layout import Entities
from gptf_gpytorch.training.chains import Moments, Sampled
from gptf_gpytorch.training.fitted import FittedModel
from gptf_gpytorch.training.recipe import Runner
from gptf_gpytorch.variational.prediction import Marginals

# Probabilities in double precision end here, and their quantiles are finite.
_LEAST, _MOST = 1e-300, 1.0 - 1e-16


@dataclass(frozen=True, kw_only=True)
class SampledModel(FittedModel, method="sampled"):
    """Samples of several chains, each with a weight.

    :param calibration: what standard deviations are multiplied by; chosen on entries held out.
    :param num_data: training entries.
    :param history: the race, the trace of every chain, and notes.
    """

    entities: Entities
    counts: Counts
    chains: tuple[Sampled, ...]
    weights: tuple[float, ...]
    calibration: float
    num_data: int
    history: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of entities of each mode."""
        return self.entities.shape

    @property
    def likelihood(self) -> Any:
        """See :attr:`~gptf_gpytorch.training.fitted.FittedModel.likelihood`."""
        if self.binary:
            return ProbitLikelihood()
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.Positive()).double()
        noises = [float((1.0 / chain.samples.tensors["noise_precision"].double()).mean()) for chain in self.chains]
        noise = sum(weight * noise for weight, noise in zip(self.weights, noises, strict=True))
        likelihood.noise = self.calibration**2 * noise
        return likelihood

    def moments(self, indices: Tensor, chunk_size: int = 20_000) -> Moments:
        """Averages over all samples of all chains, by their weights, at indices `[n, K]`."""
        blocks = []
        for block in indices.split(chunk_size):
            rows = self.entities.rows(block)
            parts = [chain.moments(rows, binary=self.binary) for chain in self.chains]
            blocks.append(Moments.mixed(parts, list(self.weights)))
        return Moments(*(torch.cat([getattr(b, name) for b in blocks]) for name in Moments.__dataclass_fields__))

    def latent(self, indices: Tensor, chunk_size: int = 20_000) -> Marginals:
        """The moments of f over samples; those of labels give the average probability, Phi(mean / sqrt(1 + variance))."""
        if not len(indices):
            return Marginals(torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.float64))
        found = self.moments(indices, max(chunk_size, 20_000))
        variance = (found.square - found.mean.square()).clamp(min=0.0)
        if self.binary:
            p = found.probability.clamp(_LEAST, _MOST)
            return Marginals(torch.special.ndtri(p) * (1.0 + variance).sqrt(), variance)
        return Marginals(found.mean, self.calibration**2 * variance)

    def shares(self, indices: Tensor) -> dict[str, float]:
        """Which share of the variance of f over entries each part of the model has; they add up to 1."""
        rows = self.entities.rows(indices)
        parts = {name: torch.zeros(len(rows), dtype=torch.float64) for name in ("biases", "pairs", "products")}
        parts |= {"counts": torch.zeros(len(rows), dtype=torch.float64)}
        parts |= {"gaussian process": torch.zeros(len(rows), dtype=torch.float64)}
        for weight, chain in zip(self.weights, self.chains, strict=True):
            for name, part in _mean_parts(chain, rows).items():
                parts[name] += weight * part
        variances = {name: float(part.var(correction=0)) for name, part in parts.items()}
        total = sum(variances.values()) or 1.0
        return {name: variance / total for name, variance in variances.items()}

    def mean_rows(self, mode: int) -> Tensor:
        """`[a, D]`: the mean row over samples of each entity of a mode that occurs, in the chain with the largest weight."""
        best = max(range(len(self.chains)), key=lambda place: self.weights[place])
        start, end = self.entities.offsets[mode : mode + 2]
        return self.chains[best].samples.tensors["rows"][:, start:end].double().mean(0)

    def state(self) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        """See :meth:`~gptf_gpytorch.training.fitted.FittedModel.state`."""
        tensors = {f"ids.{mode}": ids for mode, ids in enumerate(self.entities.ids)}
        tensors |= {f"counts.{name}": tensor for name, tensor in vars(self.counts).items()}
        for place, chain in enumerate(self.chains):
            tensors |= {f"chain.{place}.{name}": tensor for name, tensor in chain.tensors().items()}
        return tensors, {
            "num_data": self.num_data,
            "runners": [asdict(chain.runner) for chain in self.chains],
            "weights": list(self.weights),
            "calibration": self.calibration,
            "history": dict(self.history),
        }

    @classmethod
    def restored(cls, tensors: dict[str, Tensor], run: dict[str, Any], common: dict[str, Any]) -> "SampledModel":
        """See :meth:`~gptf_gpytorch.training.fitted.FittedModel.restored`."""
        shape = tuple(run["shape"])
        entities = Entities(tuple(tensors[f"ids.{mode}"] for mode in range(len(shape))), shape)
        counts = Counts(**_below(tensors, "counts"))
        chains = tuple(
            Sampled.restored(Runner(**content), entities, counts, _below(tensors, f"chain.{place}"))
            for place, content in enumerate(run["runners"])
        )
        return cls(
            **common,
            entities=entities,
            counts=counts,
            chains=chains,
            weights=tuple(run["weights"]),
            calibration=run["calibration"],
            num_data=run["num_data"],
            history=run["history"],
        )

    def describe(self) -> dict[str, Any]:
        """See :meth:`~gptf_gpytorch.training.fitted.FittedModel.describe`."""
        return {
            "method": "sampled",
            "likelihood": self.config.likelihood,
            "modes": dict(zip(self.mode_names, self.shape, strict=True)),
            "chains": {
                str(chain.runner): round(weight, 3) for chain, weight in zip(self.chains, self.weights, strict=True)
            },
            "samples": sum(len(chain.samples) for chain in self.chains),
            "entries": self.num_data,
            "parameters": sum(chain.samples.tensors["rows"][0].numel() for chain in self.chains),
            **self.history["summary"],
        }


def _below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key.removeprefix(f"{name}."): tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}


def _mean_parts(chain: Sampled, rows: Tensor) -> dict[str, Tensor]:
    """The mean over samples of each part of f at entries with stacked rows, `[n]` each."""
    samples, pairs = chain.samples, chain.samples.ranks.pairs
    A = samples.tensors["rows"].size(1)
    places = torch.where(rows < 0, A + torch.arange(rows.size(1), dtype=rows.dtype), rows)
    features, _ = chain.features(rows)
    covariates = samples.covariates(rows)
    parts = {name: torch.zeros(len(rows), dtype=torch.float64) for name in ("biases", "pairs", "products", "counts")}
    parts["gaussian process"] = torch.zeros(len(rows), dtype=torch.float64)
    for place in range(len(samples)):
        part = {name: tensor[place].double() for name, tensor in samples.tensors.items()}
        table = torch.cat([part["rows"], part["means"]])
        biases = table[:, 0][places.long()].sum(1)
        with_pairs = reference.values(places, table[:, : 1 + pairs], pairs)
        parts["biases"] += biases
        parts["pairs"] += with_pairs - biases
        parts["products"] += reference.values(places, table, pairs) - with_pairs
        parts["counts"] += covariates @ part["coefficients"][1:]
        if features is not None:
            parts["gaussian process"] += features @ part["process"]
    return {name: total / len(samples) for name, total in parts.items()}
