"""The scalable relatives of InfTucker: tensor-variate Gaussian processes of many small sub-tensors with shared factors."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import product, repeat
from typing import ClassVar

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture
from torch import Tensor

from baselines.base import Array, Fitted, Task
from baselines.tensor_gp import KERNELS, TensorGP
from baselines.tools import choose_and_stop, nonzeros
from gptf_gpytorch.distributed.threads import one_core_each

Rows = list[Tensor]  # a sorted choice of entities, for each mode
LogPrior = Callable[[int, Tensor], Tensor]  # of a mode's factors


class Subtensors:
    """Draws sub-tensors, whose cells without a training entry are 0.

    Up to half of a mode's entities are those of randomly drawn nonzeros, so that a sub-tensor is never empty; the others
    are drawn uniformly.

    :param size: entities of a mode, or all where there are fewer.
    """

    def __init__(self, task: Task, size: int) -> None:
        found = nonzeros(task.train)
        # Sorted by the longest mode, of which a sub-tensor has the smallest share: only that share is looked at.
        self.longest = int(np.argmax(task.train.shape))
        order = found.indices[:, self.longest].long().argsort(stable=True)
        self.indices, self.values = found.indices[order].long(), found.values[order].double()
        self.starts = torch.searchsorted(
            self.indices[:, self.longest].contiguous(), torch.arange(task.train.shape[self.longest] + 1)
        )
        self.sizes = [min(size, d) for d in task.train.shape]
        self.shape, self.generator = task.train.shape, np.random.default_rng([task.seed, 5])

    def draw(self) -> tuple[Rows, Tensor]:
        """Entities of each mode, and the values of their grid."""
        drawn = self.indices[self.generator.integers(len(self.values), size=-(-max(self.sizes) // 2))]
        rows = []
        for mode, (d, size) in enumerate(zip(self.shape, self.sizes, strict=True)):
            wanted = np.unique(drawn[:, mode].numpy())[:size]
            others = np.setdiff1d(np.arange(d), wanted, assume_unique=True)
            others = self.generator.choice(others, size - len(wanted), replace=False)
            rows.append(torch.from_numpy(np.sort(np.concatenate([wanted, others]))))
        at = rows[self.longest]
        ranges = zip(self.starts[at].tolist(), self.starts[at + 1].tolist(), strict=True)
        near = torch.cat([torch.arange(start, stop) for start, stop in ranges])
        inside, places = torch.ones(len(near), dtype=torch.bool), []
        for mode, (at, d) in enumerate(zip(rows, self.shape, strict=True)):
            where = torch.full((d,), -1)
            where[at] = torch.arange(len(at))
            places.append(where[self.indices[near, mode]])
            inside &= places[-1] >= 0
        grid = torch.zeros(self.sizes, dtype=torch.float64)
        grid[tuple(place[inside] for place in places)] = self.values[near[inside]]
        return rows, grid


@dataclass(frozen=True)
class DinTuckerLite:
    """DinTucker, simplified: sub-tensors move the shared factors directly, one after another in one process.

    In the original every sub-tensor has factors of its own, tied to the shared ones by a normal distribution, and
    MapReduce updates them in turn; its kernel parameters are fixed by cross-validation, and here they are learned. There
    sub-tensors have 40 to 150 entities of a mode, and as many are drawn as have the cells of the whole tensor; here they have 30,
    and an entity is met ``passes`` times or so, which is what one process has time for. Kernel,
    learning rate and the number of sub-tensors are chosen on held-out training entries.

    Predictions are averages over ``bags`` sub-tensors of what each one's Gaussian process says of the entry.

    :param size: entities that a sub-tensor has of each mode.
    :param steps: sub-tensors at least; more if it takes more to meet every entity ``passes`` times.
    :param scale: the standard deviation of the factors at the start.
    :param inner: passes of the labels' fixed point in each sub-tensor.
    """

    name: ClassVar[str] = "dintucker_lite"
    kernels: tuple[str, ...] = KERNELS
    learning_rates: tuple[float, ...] = (0.02, 0.1)
    size: int = 30
    steps: int = 200
    passes: float = 2.0
    scale: float = 0.1
    bags: int = 10
    inner: int = 5

    def fit(self, task: Task) -> Fitted:
        with one_core_each():
            return choose_and_stop(task, product(self.kernels, self.learning_rates), self._fits)

    def _fits(self, task: Task, choice: tuple[str, float]) -> Iterator[tuple[int, Fitted]]:
        (kernel, learning_rate), shape = choice, task.train.shape
        steps = max(self.steps, round(self.passes * max(shape) / self.size))
        looks = {round(steps * share) for share in (0.1, 0.2, 0.4, 0.7, 1.0)}
        source = Subtensors(task, self.size)
        generator = torch.Generator().manual_seed(task.seed)
        start = [self.scale * torch.randn(d, task.rank, generator=generator, dtype=torch.float64) for d in shape]
        typical = torch.stack([source.draw()[1] for _ in range(5)])
        model = TensorGP(start, kernel, typical, task.binary)
        optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
        for step, prior in enumerate(self._priors(model, steps, task.seed), start=1):
            rows, grid = source.draw()
            optimizer.zero_grad()
            tables = model.tables(rows)
            bound, _, _ = model.bound(grid, tables, None, self.inner)
            log_prior = torch.stack([prior(mode, table) for mode, table in enumerate(tables)]).sum()
            (-(bound + log_prior) / grid.numel()).backward()
            optimizer.step()
            if step in looks:
                yield step, self._bagged(model, Subtensors(task, self.size))

    def _priors(self, model: TensorGP, steps: int, seed: int) -> Iterator[LogPrior]:
        """The factors' log prior in every step."""
        return repeat(_standard_normal, steps)

    def _bagged(self, model: TensorGP, source: Subtensors) -> Fitted:
        model, bags = deepcopy(model), []  # training goes on
        with torch.no_grad():
            for _ in range(self.bags):
                rows, grid = source.draw()
                tables = model.tables(rows)
                bags.append((tables, model.bound(grid, tables, None, 4 * self.inner)[1]))

        def predict(indices: Tensor) -> Array:
            with one_core_each(), torch.no_grad():
                parts = [_average(model, part.long(), bags) for part in indices.split(2000)]
            return torch.cat(parts).numpy()

        return Fitted(predict)


def _standard_normal(_: int, table: Tensor) -> Tensor:
    return -0.5 * table.square().sum()


def _average(model: TensorGP, indices: Tensor, bags: Sequence[tuple[list[Tensor], Tensor]]) -> Tensor:
    """The average over sub-tensors of the posterior mean: alpha, contracted with each mode's covariances."""
    inputs = [table[at] for table, at in zip(model.factors, indices.T, strict=True)]
    found = []
    for tables, alpha in bags:
        first, *others = model.covariances(inputs, tables)  # [n, s_k] each
        mean = torch.tensordot(first, alpha, dims=1)  # [n, s_2, ..., s_K]
        for covariance in others:
            mean = torch.einsum("ns,ns...->n...", covariance, mean)
        found.append(model.mean + mean)
    return torch.stack(found).mean(dim=0)


@dataclass(frozen=True)
class InfTuckerExLite(DinTuckerLite):
    """InfTuckerEx, simplified: the factors' prior is a Dirichlet process mixture that is fitted anew now and then.

    In the original its variational posterior is updated online with every sub-tensor, and the learning rate decays; here
    scikit-learn fits a truncated variational mixture with diagonal covariances to all factors of a mode, ``refits``
    times in a fit, and the factors climb its density. All else is :class:`DinTuckerLite`'s.

    :param clusters: of a mode at most, the truncation of the process.
    :param sample: factors of a mode at most that a mixture is fitted to.
    """

    name: ClassVar[str] = "inftuckerex_lite"
    clusters: int = 10
    refits: int = 20
    sample: int = 5000

    def _priors(self, model: TensorGP, steps: int, seed: int) -> Iterator[LogPrior]:
        every = -(-steps // (self.refits + 1))
        yield from repeat(_standard_normal, min(every, steps))
        for done in range(every, steps, every):
            mixtures = [self._mixture(table.detach(), seed) for table in model.factors]
            yield from repeat(partial(_mixture_density, mixtures), min(every, steps - done))

    def _mixture(self, table: Tensor, seed: int) -> torch.distributions.MixtureSameFamily:
        rows = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))[: self.sample]]
        fitted = BayesianGaussianMixture(
            n_components=min(self.clusters, -(-len(rows) // 10)),
            covariance_type="diag",
            weight_concentration_prior_type="dirichlet_process",
            reg_covar=1e-2,
            max_iter=100,
            random_state=seed,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted.fit(rows.numpy())
        weights, means, variances = map(torch.from_numpy, (fitted.weights_, fitted.means_, fitted.covariances_))
        normals = torch.distributions.Independent(torch.distributions.Normal(means, variances.sqrt()), 1)
        return torch.distributions.MixtureSameFamily(torch.distributions.Categorical(weights), normals)


def _mixture_density(mixtures: Sequence[torch.distributions.Distribution], mode: int, table: Tensor) -> Tensor:
    return mixtures[mode].log_prob(table).sum()
