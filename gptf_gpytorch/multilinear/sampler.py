"""One sweep of the sampler: every unknown is drawn given all others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.distributed import slots
from gptf_gpytorch.distributed.communicator import Communicator, SingleProcess
from gptf_gpytorch.distributed.threads import one_core_each, split
from gptf_gpytorch.errors import NumericalError
from gptf_gpytorch.multilinear import labels, priors, reference
from gptf_gpytorch.multilinear.layout import Entities, Grouped
from gptf_gpytorch.multilinear.state import Ranks, State

try:
    from gptf_gpytorch.multilinear import loops
except ImportError:  # the extra `fast` is not installed
    loops = None  # type: ignore[assignment]

_NOTHING = np.empty(0)
#: Precision of the prior of the mean c.
FLAT = 1e-6


@dataclass(frozen=True)
class Observations:
    """The entries of this worker, as the sampler sees them.

    :param rows: `[n, K]` stacked rows of their entities.
    :param values: `[n]`, labels 0 and 1 if ``binary``.
    :param covariates: `[n, T]`.
    :param weights: `[n]` or None.
    :param first: where this worker's entries begin among all ``total`` ones, whose random numbers every worker draws.
    """

    entities: Entities
    rows: Tensor
    values: Tensor
    covariates: Tensor
    weights: Tensor | None
    binary: bool
    first: int
    total: int


class Sampler:
    """Sweeps over the multilinear model of some entries.

    :param prior: of the rows of a mode: a full normal-Wishart, or independent columns.
    :param least_noise: the smallest standard deviation of the noise of real values, in their units. Where ranks are large, a
        chain may explain the noise of its entries; a floor keeps it from that.
    :param compiled: None takes the compiled loops if they are there.
    """

    def __init__(
        self,
        data: Observations,
        ranks: Ranks,
        *,
        prior: priors.PriorName = "independent",
        least_noise: float = 0.0,
        seed: int = 0,
        communicator: Communicator | None = None,
        compiled: bool | None = None,
    ) -> None:
        self.data, self.ranks, self.prior, self.seed = data, ranks, prior, seed
        self.largest_precision = least_noise**-2.0 if least_noise else math.inf
        self.communicator = SingleProcess() if communicator is None else communicator
        self.compiled = loops is not None if compiled is None else compiled
        offsets = data.entities.offsets
        self.modes = [slice(first, end) for first, end in pairwise(offsets)]
        self.grouped = [Grouped.by_mode(data.rows, mode, at.start, at.stop) for mode, at in enumerate(self.modes)]
        ones = data.values.new_ones(len(data.values), 1)
        self.design = torch.cat([ones, data.covariates], dim=1)  # [n, 1 + T]
        weighed = self.design if data.weights is None else data.weights[:, None] * self.design
        sums = torch.cat([(self.design.T @ weighed).flatten(), weighed[:, :1].sum(0)])
        sums = self.communicator.sum(sums)
        self.gram, self.count = sums[:-1].view(self.design.size(1), -1), float(sums[-1])
        self.features: Tensor | None = None
        self.features_gram = torch.empty(0, 0)

    def start(self) -> State:
        """Where a chain begins: factors of products around 1/2, everything else near 0."""
        generator = np.random.default_rng([self.seed, 0])
        D, A, K = self.ranks.columns, self.modes[-1].stop, len(self.modes)
        rows = 0.1 * torch.from_numpy(generator.standard_normal((A, D)))
        rows[:, 1 + self.ranks.pairs :] += 0.5
        means = torch.zeros(K, D, dtype=rows.dtype)
        precisions = torch.eye(D, dtype=rows.dtype).repeat(K, 1, 1)
        coefficients = torch.zeros(self.design.size(1), dtype=rows.dtype)
        return State(coefficients, rows, means, precisions, torch.ones((), dtype=rows.dtype), rows.new_empty(0))

    def add_process(self, features: Tensor) -> None:
        """Let g take part from now on.

        :param features: `[n, p]` whitened features w of this worker's entries: g = w'u, u ~ N(0, I) a priori. A collective.
        """
        weighed = features if self.data.weights is None else self.data.weights[:, None] * features
        self.features, self.features_gram = features, self.communicator.sum(features.T @ weighed)

    def values(self, state: State) -> Tensor:
        """The values f `[n]` of this worker's entries."""
        f = self.design @ state.coefficients
        f += multilinear(self.data.rows, state.rows, self.ranks.pairs, self.compiled)
        return f if self.features is None else f + self.features @ state.process

    def sweep(self, state: State, number: int) -> None:
        """Draw everything anew, in place. The random numbers depend on the seed and the number of the sweep alone."""
        with one_core_each():  # most operations are too small to be worth splitting
            self._sweep(state, number)

    def _sweep(self, state: State, number: int) -> None:
        data, generator = self.data, np.random.default_rng([self.seed, number])
        f = self.values(state)
        z = data.values
        if data.binary:
            uniform = torch.from_numpy(generator.random(data.total))[data.first : data.first + len(f)]
            sides = 2.0 * data.values - 1.0
            z = (
                labels.latent_values(sides, f, uniform)
                if data.weights is None
                else labels.mean_latent_values(sides, f, uniform, data.weights)
            )
        residual = z - f
        self._draw_noise_and_coefficients(state, residual, generator)
        self._draw_process(state, residual, generator)
        for mode in range(len(self.modes)):
            self._draw_rows(state, mode, residual, generator)
        if not state.finite():
            raise NumericalError(
                f"A sweep must draw numbers. Got NaN or infinity in sweep {number}: "
                "standardise the values, or take smaller ranks."
            )

    def _draw_noise_and_coefficients(self, state: State, residual: Tensor, generator: np.random.Generator) -> None:
        weighed = residual if self.data.weights is None else self.data.weights * residual
        sums = torch.cat([(weighed @ residual)[None], self.design.T @ weighed])
        said = slots.fill(self.communicator, sums, None)
        summed = self.communicator.sum(torch.cat([sums, said.flatten()]))
        slots.check(summed[len(sums) :].view_as(said))
        squares, projected = summed[0], summed[1 : len(sums)]
        if not self.data.binary:
            shape = priors.SHAPE + self.count / 2.0
            drawn = generator.standard_gamma(shape) / (priors.RATE + squares / 2.0)
            state.noise_precision = drawn.clamp(max=self.largest_precision)
        noise = torch.from_numpy(generator.standard_normal(len(projected)))
        # N(0, 1) on the coefficients of standardised covariates; next to flat on c.
        prior = torch.ones_like(projected)
        prior[0] = FLAT
        new = _draw_linear(self.gram, projected, float(state.noise_precision), prior, noise, state.coefficients)
        residual -= self.design @ (new - state.coefficients)
        state.coefficients = new

    def _draw_process(self, state: State, residual: Tensor, generator: np.random.Generator) -> None:
        """The values u given all else: the statistics of Theorem 1 at fixed inputs, with z - rest for the values."""
        if self.features is None:
            return
        weighed = residual if self.data.weights is None else self.data.weights * residual
        projected = self.communicator.sum(self.features.T @ weighed)
        noise = torch.from_numpy(generator.standard_normal(len(projected)))
        prior = torch.ones_like(projected)
        new = _draw_linear(self.features_gram, projected, float(state.noise_precision), prior, noise, state.process)
        residual -= self.features @ (new - state.process)
        state.process = new

    def _draw_rows(self, state: State, mode: int, residual: Tensor, generator: np.random.Generator) -> None:
        at = self.modes[mode]
        count, D = at.stop - at.start, self.ranks.columns
        S, t = self._statistics(state, mode, residual)
        if self.communicator.size > 1:
            packed = self.communicator.sum(torch.cat([S, t], dim=1))
            S, t = packed[:, : S.size(1)].contiguous(), packed[:, S.size(1) :].contiguous()
        noise = torch.from_numpy(generator.standard_normal((count, D)))
        old = state.rows[at].clone()
        T, m, beta = state.precisions[mode], state.means[mode], float(state.noise_precision)
        if self.compiled:
            new = torch.empty_like(old)
            arrays = [part.numpy() for part in (S, t, T, T @ m, noise, old, new)]
            s, u, precisions, weighed, eps, before, after = arrays

            def job(chunks: Sequence[range]) -> int:
                first, end = _span(chunks)
                return int(loops.draw(first, end, s, u, beta, precisions, weighed, eps, before, after))

            worst = max(split(job, self.grouped[mode].chunks, True))
            if worst >= 0:
                raise reference.failed(int(self.data.entities.ids[mode][worst]))
        else:
            new = reference.draw(S, t, beta, T, m, noise, old)
        self._shift(state, mode, new - old, residual)
        state.rows[at] = new
        if self.prior == "full":
            mean, precision = priors.draw_full(new, generator)
        else:
            mean, precision = priors.draw_independent(new, m, generator)
        state.means[mode], state.precisions[mode] = mean, precision

    def _statistics(self, state: State, mode: int, residual: Tensor) -> tuple[Tensor, Tensor]:
        grouped, pairs, weights = self.grouped[mode], self.ranks.pairs, self.data.weights
        if not self.compiled:
            return reference.statistics(grouped, state.rows, mode, pairs, weights, residual)
        D, count = self.ranks.columns, len(grouped.starts) - 1
        S, t = torch.empty(count, D * (D + 1) // 2, dtype=residual.dtype), torch.empty(count, D, dtype=residual.dtype)
        order, starts, rows = (part.numpy() for part in (grouped.order, grouped.starts, grouped.rows))
        table, e, s, u = (part.numpy() for part in (state.rows, residual, S, t))
        o = _NOTHING if weights is None else weights.numpy()

        def job(chunks: Sequence[range]) -> None:
            loops.statistics(order, starts, rows, *_span(chunks), table, mode, pairs, o, e, s, u)

        list(split(job, grouped.chunks, True))
        return S, t

    def _shift(self, state: State, mode: int, change: Tensor, residual: Tensor) -> None:
        grouped, pairs = self.grouped[mode], self.ranks.pairs
        if not self.compiled:
            reference.shift(grouped, state.rows, mode, pairs, change, residual)
            return
        order, starts, rows = (part.numpy() for part in (grouped.order, grouped.starts, grouped.rows))
        table, delta, e = (part.numpy() for part in (state.rows, change, residual))

        def job(chunks: Sequence[range]) -> None:
            loops.shift(order, starts, rows, *_span(chunks), table, mode, pairs, delta, e)

        list(split(job, grouped.chunks, True))


def _draw_linear(gram: Tensor, projected: Tensor, beta: float, prior: Tensor, noise: Tensor, old: Tensor) -> Tensor:
    """Coefficients from N(P^-1 beta (projected residual + gram old), P^-1), P = diag(prior) + beta gram."""
    L, info = torch.linalg.cholesky_ex(beta * gram + torch.diag(prior))
    if int(info):
        raise NumericalError(
            "The precision of the coefficients must have a Cholesky factor. Got one that is not positive definite: "
            "a value or a weight may be too large; standardise the values."
        )
    b = beta * (projected + gram @ old)
    x = torch.linalg.solve_triangular(L, b[:, None], upper=False) + noise[:, None]
    new: Tensor = torch.linalg.solve_triangular(L.T, x, upper=True)[:, 0]
    return new


def multilinear(rows: Tensor, table: Tensor, pairs: int, compiled: bool | None = None) -> Tensor:
    """Biases, pairs and products `[n]` of entries with stacked rows `[n, K]`."""
    if not (loops is not None if compiled is None else compiled):
        return reference.values(rows, table, pairs)
    f = torch.empty(len(rows), dtype=table.dtype)
    cells, numbers, out = rows.numpy(), table.numpy(), f.numpy()
    size = max(1, len(rows) // 16)
    parts = [range(start, min(start + size, len(rows))) for start in range(0, len(rows), size)]

    def job(chunks: Sequence[range]) -> None:
        loops.values(cells, *_span(chunks), numbers, pairs, out)

    list(split(job, parts, True))
    return f


def _span(chunks: Sequence[range]) -> tuple[int, int]:
    """Consecutive chunks as one."""
    return (chunks[0].start, chunks[-1].stop) if chunks else (0, 0)
