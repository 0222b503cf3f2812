"""Chains: runners of the default method on some entries, one sweep at a time, and what they have kept."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.distributed.communicator import Communicator
from gptf_gpytorch.multilinear import labels
from gptf_gpytorch.multilinear.covariates import Counts
from gptf_gpytorch.multilinear.layout import Entities
from gptf_gpytorch.multilinear.sampler import Observations, Sampler
from gptf_gpytorch.multilinear.samples import Samples
from gptf_gpytorch.multilinear.state import State
from gptf_gpytorch.training.process import Process, inputs
from gptf_gpytorch.training.recipe import Runner, Schedule

# Entries that labels with weights may become, at most.
_REPEATED = 1_000_000


@dataclass(frozen=True)
class Sampled:
    """What a chain has learnt: its samples and the process that some of their numbers are of."""

    runner: Runner
    samples: Samples
    process: Process | None

    def features(self, rows: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Features of g `[n, p]` at entries, and the variance `[n]` they leave open; None without g."""
        if self.process is None or self.samples.counts is None:
            return None, None
        features = self.process.features(inputs(self.process.rows, rows, self.samples.counts.new(rows)))
        return features, self.process.left(features)

    def moments(self, rows: Tensor, *, binary: bool) -> "Moments":
        """What the samples say of entries with stacked rows `[n, K]`, on average."""
        features, left = self.features(rows)
        total = torch.zeros(4, len(rows), dtype=torch.float64)
        for f, spread, noise in self.samples.draws(rows, features):
            variance = spread if left is None else spread + left
            total[0] += f
            total[1] += f.square() + variance
            total[2] += torch.special.ndtr(f / (1.0 + variance).sqrt()) if binary else 0.0
            total[3] += noise
        mean, square, probability, noise = total / len(self.samples)
        return Moments(mean, square, probability, noise)

    def tensors(self) -> dict[str, Tensor]:
        """All numbers, by name, for :meth:`restored`; the entities and their counts are those of the entries."""
        process = {} if self.process is None else {f"process.{name}": t for name, t in vars(self.process).items()}
        return {**{f"samples.{name}": tensor for name, tensor in self.samples.tensors.items()}, **process}

    @classmethod
    def restored(
        cls, runner: Runner, entities: Entities, counts: Counts | None, tensors: dict[str, Tensor]
    ) -> "Sampled":
        """What :meth:`tensors` returned."""
        samples = {name.removeprefix("samples."): t for name, t in tensors.items() if name.startswith("samples.")}
        process = {name.removeprefix("process."): t for name, t in tensors.items() if name.startswith("process.")}
        known = counts if runner.counts or runner.process else None
        return cls(runner, Samples(runner.ranks, entities, known, samples), Process(**process) if process else None)


@dataclass(frozen=True)
class Moments:
    """Averages over samples, each `[n]`."""

    mean: Tensor  # of f
    square: Tensor  # of f^2
    probability: Tensor  # of a label 1; 0 for real values
    noise: Tensor  # variance of an observation

    @classmethod
    def mixed(cls, parts: list["Moments"], weights: list[float]) -> "Moments":
        """Those of a mixture."""
        names = ("mean", "square", "probability", "noise")
        return cls(*(sum(w * getattr(part, name) for w, part in zip(weights, parts, strict=True)) for name in names))


@dataclass(frozen=True)
class ChainData:
    """Entries, as chains see them.

    :param rows: `[N, K]` stacked rows of all entries of all workers.
    :param values: `[N]` in the units of training.
    :param mine: this worker's entries among them.
    """

    entities: Entities
    counts: Counts
    rows: Tensor
    values: Tensor
    weights: Tensor | None
    binary: bool
    mine: slice

    @classmethod
    def of(
        cls,
        indices: Tensor,
        values: Tensor,
        weights: Tensor | None,
        shape: tuple[int, ...],
        *,
        binary: bool,
        communicator: Communicator,
    ) -> "ChainData":
        """All entries, of which each worker sums its shard.

        Labels that count several times are repeated, which is exact, unless there would be too many entries.
        """
        if binary and weights is not None:
            whole, total = bool((weights == weights.round()).all()), float(weights.sum())
            if whole and 0 < total <= max(_REPEATED, 4 * len(weights)):
                copies = weights.long()
                indices, values, weights = indices.repeat_interleave(copies, 0), values.repeat_interleave(copies), None
        entities = Entities.among(indices, shape)
        rows = entities.rows(indices)
        rank, size, n = communicator.rank, communicator.size, len(values)
        mine = slice(n * rank // size, n * (rank + 1) // size)
        return cls(entities, Counts.of(entities, rows), rows, values.double(), weights, binary, mine)


class Chain:
    """A runner on some entries, from its first sweep to its last sample.

    :param seed: of this chain.
    :param samples: how many are kept, evenly spread over the sweeps after burn-in.
    :param points: inducing points of g.
    :param learnt_on: entries that the kernel of g is learnt on, at most.
    """

    def __init__(
        self,
        data: ChainData,
        runner: Runner,
        schedule: Schedule,
        *,
        samples: int,
        points: int,
        learnt_on: int,
        seed: int,
        communicator: Communicator,
    ) -> None:
        self.data, self.runner, self.schedule = data, runner, schedule
        self.points, self.learnt_on, self.seed, self.communicator = points, learnt_on, seed, communicator
        after = schedule.sweeps - schedule.burn_in
        self._keep = set((schedule.burn_in + np.ceil(np.arange(1, samples + 1) * after / samples)).astype(int).tolist())
        mine = data.mine
        rows = data.rows[mine]
        covariates = data.counts.training(rows) if runner.counts else torch.zeros(len(rows), 0, dtype=torch.float64)
        weights = None if data.weights is None else data.weights[mine].double()
        self.sampler = Sampler(
            Observations(
                data.entities, rows, data.values[mine], covariates, weights, data.binary, mine.start, len(data.values)
            ),
            runner.ranks,
            prior=runner.prior,
            least_noise=runner.least_noise * float(data.values.std(correction=0)),
            seed=seed,
            communicator=communicator,
        )
        self.state, self.sweep = self.sampler.start(), 0
        self.kept: list[State] = []
        self.process: Process | None = None
        # Of the sweeps before g takes part, which is told of their mean.
        self._row_sum = torch.zeros_like(self.state.rows)

    @property
    def done(self) -> bool:
        """Whether all sweeps were taken."""
        return self.sweep >= self.schedule.sweeps

    def advance(self) -> None:
        """Take a sweep. A collective; the state is as before if it is left by an error at its first sum."""
        if self.runner.process and self.process is None and self.sweep >= self.schedule.burn_in // 2:
            self._add_process(self._learn_process())
        self.sampler.sweep(self.state, self.sweep + 1)
        self.sweep += 1
        if self.runner.process and self.process is None and self.sweep > self.schedule.burn_in // 4:
            self._row_sum += self.state.rows
        if self.sweep in self._keep:
            self.kept.append(self.state.copy())

    def sampled(self, states: list[State] | None = None) -> Sampled:
        """What was learnt: the samples that were kept, or other states."""
        counts = self.data.counts if self.runner.counts or self.runner.process else None
        kept = self.kept if states is None else states
        samples = Samples.of(self.runner.ranks, self.data.entities, counts, kept)
        return Sampled(self.runner, samples, self.process)

    def _learn_process(self) -> Process:
        """Kernel parameters from residuals of some entries of all workers: every worker learns the same. A collective."""
        data, generator = self.data, np.random.default_rng([self.seed, 1_000_000_000])
        n = len(data.values)
        chosen = torch.from_numpy(np.sort(generator.permutation(n)[: self.learnt_on]))
        uniform = torch.from_numpy(generator.random(n))[data.mine]
        f, values = self.sampler.values(self.state), data.values[data.mine]
        z = labels.latent_values(2.0 * values - 1.0, f, uniform) if data.binary else values
        residuals = torch.zeros(n, dtype=torch.float64)
        residuals[data.mine] = z - f
        residuals = self.communicator.sum(residuals[chosen])
        table = self._mean_rows()
        x = inputs(table, data.rows[chosen], data.counts.training(data.rows[chosen]))
        return Process.learnt(table, x, residuals, float(self.state.noise_precision), self.points, self.seed)

    def _mean_rows(self) -> Tensor:
        """`[A, D]`: the rows of the last sweeps on average, standardised over the entities of each mode; `[A, 0]` if untold."""
        if self.runner.process == "counts":
            return self._row_sum[:, :0]
        table = self._row_sum.clone()
        for at in self.sampler.modes:
            spread, mean = torch.std_mean(table[at], dim=0, correction=0)
            table[at] = (table[at] - mean) / torch.where(spread > 1e-9, spread, 1.0)
        return table

    def _add_process(self, process: Process) -> None:
        self.process = process
        if not len(self.state.process):
            self.state.process = torch.zeros(len(process.points), dtype=torch.float64)
        mine = self.data.rows[self.data.mine]
        self.sampler.add_process(process.features(inputs(process.rows, mine, self.data.counts.training(mine))))

    def tensors(self) -> dict[str, Tensor]:
        """Where the chain is, for :meth:`load`."""
        tensors = {f"state.{name}": tensor for name, tensor in self.state.tensors().items()}
        tensors |= {
            f"kept.{name}": torch.stack([getattr(state, name) for state in self.kept])
            for name in (self.state.tensors() if self.kept else ())
        }
        if self.process is not None:
            tensors |= {f"process.{name}": tensor for name, tensor in vars(self.process).items()}
        elif self.runner.process:
            tensors["told.row_sum"] = self._row_sum
        return tensors

    def load(self, tensors: dict[str, Tensor], sweep: int) -> None:
        """Go on from what :meth:`tensors` returned. A collective."""
        parts: dict[str, dict[str, Any]] = {"state": {}, "kept": {}, "process": {}, "told": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor.clone()
        self.state, self.sweep = State(**parts["state"]), sweep
        count = len(parts["kept"]["rows"]) if parts["kept"] else 0
        self.kept = [State(**{name: t[place] for name, t in parts["kept"].items()}) for place in range(count)]
        if parts["process"]:
            self._add_process(Process(**parts["process"]))
        if parts["told"]:
            self._row_sum = parts["told"]["row_sum"]
