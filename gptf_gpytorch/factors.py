"""What an entity brings to its entries: its latent factors, with a standard normal prior, and, if wanted, a bias."""

import math
import operator
from collections.abc import Sequence
from functools import cache
from typing import Any

import gpytorch
import numpy as np
import torch
from linear_operator import to_linear_operator
from torch import Tensor

from gptf_gpytorch.distributed.threads import one_core_each
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.wording import option

# Rows of normal numbers that draws of factors are made with, a power of 2: so many that entries of an entity seldom share one.
_NOISE = 2**14
# Levels of how often an entity occurs, two for each doubling: the last one is of 740,000 entries and more.
_LEVELS = 40
_PRIMES = (2_654_435_761, 2_246_822_519, 3_266_489_917, 668_265_263)
_MULTIPLIER, _STRIDE = 6_364_136_223_846_793_005, 2_971


def _positive(name: str, values: Any, count: int | None = None) -> tuple[int, ...]:
    """Integers of at least 1, of Python's or NumPy's kind, or an error that states the rule.

    :param count: how often a single number is repeated.
    """
    try:
        found = (operator.index(values),) * count if count is not None and not np.iterable(values) else tuple(values)
        numbers = tuple(operator.index(value) for value in found)
    except TypeError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise InputError(f"{name} must be integers of at least 1, one for each mode. Got {values!r}.")
    return numbers


def hashed(indices: Tensor, turn: int) -> Tensor:
    """A number `[n]` for each cell `[n, K]`, see :meth:`LatentFactors.hashing`; its upper bits are mixed best."""
    first, multiplier, _, *primes = LatentFactors.hashing(turn)
    factors = indices.new_tensor(primes, dtype=torch.long)
    mixed = (indices.long() + 1) * factors[torch.arange(indices.size(-1)) % len(primes)]
    code = torch.full_like(mixed[:, 0], first)
    for column in mixed.unbind(-1):
        code = (code ^ column) * multiplier  # wraps around
    return code


def level(count: Tensor) -> Tensor:
    """The level `[d]` of entities that occur so often; one that does not is like one that occurs once."""
    return (2.0 * count.clamp(min=1).double().log2()).round().long().clamp(max=_LEVELS - 1)


def with_levels_of(ranks: tuple[int, ...], occurrences: bool) -> tuple[int, ...]:
    """The ranks of all parts of x: where it matters how often entities occur, a level of each mode has one factor."""
    return ranks + (1,) * (len(ranks) * occurrences)


def _halves(tables: Sequence[Tensor | None]) -> tuple[Sequence[Tensor | None], Sequence[Tensor | None]]:
    return tables[: len(tables) // 2], tables[len(tables) // 2 :]


@cache
def _normal(dim: int) -> Tensor:
    """Normal numbers `[_NOISE, D]`, the same everywhere."""
    return torch.randn(_NOISE, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class LatentFactors(gpytorch.Module):  # type: ignore[misc]
    r"""The factors :math:`U^{(k)}` `[d_k, r_k]` of K modes, and the inputs made of them.

    The input of the entry at :math:`(i_1, \ldots, i_K)` is the concatenation of its K rows,
    :math:`x = [u^{(1)}_{i_1}, \ldots, u^{(K)}_{i_K}]`, a vector of :math:`D = \sum_k r_k` numbers.

    :param shape: the number of entities of each mode, :math:`d_1, \ldots, d_K`.
    :param rank: the number of factors of an entity: one for all modes, or one for each.
    :param scale: the standard deviation of the random start. Small is better than the prior's 1: see ``initialize``.
    :param draws: 0 makes the factors point estimates. Any other number gives every factor a posterior of its own,
        :math:`N(u, \sigma^2)`, and the bound an average over so many draws of the factors for each entry. A draw depends on
        the entry's cell, its number and the evaluation's turn (:attr:`CollapsedELBO.turn`) alone.
    :param biases: whether every entity also has a bias, which is added to f at its entries: see :meth:`offset`.
    :param occurrences: whether x also has a number for every mode that says how often the entity occurs: one factor of the
        level of its entry count, of which ``initialize`` takes note. To all but :meth:`check`, which adds their columns to
        indices, levels are entities of K further modes.

    Example:
        >>> factors = LatentFactors(shape=(4, 5, 6), rank=2)
        >>> factors(torch.tensor([[0, 0, 0], [3, 4, 5]])).shape
        torch.Size([2, 6])

    """

    def __init__(
        self,
        shape: Sequence[int],
        rank: int | Sequence[int],
        *,
        scale: float = 0.1,
        draws: int = 0,
        biases: bool = False,
        occurrences: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.draws, self.occurrences = draws, occurrences
        #: The number of entities of each of the K modes.
        self.entities = _positive("shape", shape)
        modes = len(self.entities)
        ranks = _positive("rank", rank, count=modes)
        if len(ranks) != modes:
            raise InputError(f"{option('rank')} must be one number, or one for each of the {modes} modes. Got {ranks}.")
        self.shape = self.entities + (_LEVELS,) * (modes * occurrences)
        self.ranks = with_levels_of(ranks, occurrences)
        for mode, size in enumerate(self.entities if occurrences else ()):
            self.register_buffer(f"levels_{mode}", torch.zeros(size, dtype=torch.long))
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(scale * torch.randn(d, r, dtype=dtype))
            for d, r in zip(self.shape, self.ranks, strict=True)
        )
        self.log_deviations = torch.nn.ParameterList(
            torch.nn.Parameter(torch.full_like(table, math.log(scale))) for table in (self.weights if draws else ())
        )
        sizes = self.shape if biases else ()
        self.biases = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(d, 1, dtype=dtype)) for d in sizes)
        self.log_bias_deviations = torch.nn.ParameterList(
            torch.nn.Parameter(torch.full((d, 1), math.log(scale), dtype=dtype)) for d in sizes
        )

    def __getitem__(self, mode: int) -> Tensor:
        """The factors of one mode `[d_k, r_k]`."""
        table: Tensor = self.weights[mode]
        return table

    def __len__(self) -> int:
        return len(self.shape)

    @property
    def levels(self) -> list[Tensor]:
        """Of each mode, the levels `[d_k]` of its entities; none where it does not matter how often they occur."""
        return [self.get_buffer(f"levels_{mode}") for mode in range(len(self.shape) - len(self.entities))]

    def count_(self, occurrences: Sequence[Tensor]) -> None:
        """Take note of how often the entities of each mode occur."""
        for levels, count in zip(self.levels, occurrences, strict=True):
            levels.copy_(level(count))

    @property
    def dim(self) -> int:
        """D, the length of a concatenated input."""
        return sum(self.ranks)

    def forward(self, indices: Tensor) -> Tensor:
        """Gather and concatenate: indices `[n, K]` -> x `[n, D]`."""
        return torch.cat([table[indices[:, mode].long()] for mode, table in enumerate(self.weights)], dim=-1)

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """All of an entity: first what x is made of, the factors of each mode and, if there are draws, the logs of their
        deviations; then biases and the logs of theirs.
        """
        return (*self.weights, *self.log_deviations, *self.biases, *self.log_bias_deviations)

    def offset(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        r"""What biases add to f at indices `[n, K]`, its mean and its variance `[n]`.

        A bias has the posterior :math:`N(b, \sigma^2)`, and that of f is independent of it. So the bound takes the mean as
        part of f's prior mean and the variance as part of :math:`k(x_j, x_j)`: no draws are needed.
        """
        mean, variance = (
            torch.stack([table[indices[:, mode].long(), 0] for mode, table in enumerate(tables)])
            for tables in (self.biases, self.log_bias_deviations)
        )
        return mean.sum(0), (2.0 * variance).exp().sum(0)

    def bias_distribution(self, indices: Tensor, *, prior: bool = False) -> gpytorch.distributions.MultivariateNormal:
        """The sums of the biases of entries `[n, K]`: those of entries that share an entity go together."""
        posterior = zip(self.biases, self.log_bias_deviations, self.bias_variances(), strict=True)
        mean: Tensor | float = 0.0
        covariance: Tensor | float = 0.0
        for mode, (bias, log_deviation, variance) in enumerate(posterior):
            rows = indices[:, mode].long().to(bias.device)
            mean = mean + (torch.zeros_like(bias) if prior else bias)[rows, 0]
            own = variance.expand(len(rows)) if prior else (2.0 * log_deviation[rows, 0]).exp()
            covariance = covariance + own * (rows[:, None] == rows)
        # Lazy, because it is singular where there are more entries than entities.
        return gpytorch.distributions.MultivariateNormal(mean, to_linear_operator(covariance))

    def scatter_offset_(
        self, gradients: Sequence[Tensor | None], indices: Tensor, d_mean: Tensor, d_variance: Tensor
    ) -> None:
        """Add the gradient of ``offset`` to gradients shaped like the tables, or None."""
        for mode, (bias, log_deviation) in enumerate(zip(*_halves(gradients[-2 * len(self) :]), strict=True)):
            rows = indices[:, mode].long()
            if bias is not None:
                bias.index_add_(0, rows, d_mean[:, None])
            if log_deviation is not None:
                twice = 2.0 * (2.0 * self.log_bias_deviations[mode].detach()[rows]).exp()
                log_deviation.index_add_(0, rows, d_variance[:, None] * twice)

    def draw(self, indices: Tensor, noise: Tensor) -> Tensor:
        """Draws of x `[n, D]` from the posterior of the factors at indices `[n, K]`."""
        drawn: Tensor = self(indices) + noise[:, : self.dim] * self._deviations(indices)
        return drawn

    def noise(self, indices: Tensor, draws: range, turn: int = 0) -> Tensor:
        """Normal numbers `[n len(draws), D]`, an entry's draws one after the other; every other one is the last, negated.

        With biases there is one more column, theirs.

        :param turn: another number gives other draws.
        """
        return self._noise(indices, draws, turn, self.normal_numbers)

    def bias_noise(self, indices: Tensor, draws: range, turn: int = 0) -> Tensor:
        """The last column of :meth:`noise`, `[n len(draws)]`."""
        return self._noise(indices, draws, turn, self.normal_numbers[:, -1:])[:, 0]

    @property
    def normal_numbers(self) -> Tensor:
        """The table that draws are made with."""
        return _normal(self.dim + bool(self.biases)).to(self[0])

    @staticmethod
    def hashing(turn: int) -> tuple[int, ...]:
        """How the row of an entry's normal numbers is found, here and in the compiled loops.

        The hash of a cell begins with the first number; each index plus 1, times a prime (from the fourth on, in turns), is mixed
        in, and the whole multiplied with the second number. A pair of draws is the third number of rows further than the last.
        """
        return (turn * 1_442_695_040_888_963_407 % 2**63, _MULTIPLIER, _STRIDE, *_PRIMES)

    def _noise(self, indices: Tensor, draws: range, turn: int, table: Tensor) -> Tensor:
        code = hashed(indices, turn)
        numbers = torch.arange(draws.start, draws.stop, device=indices.device)
        places = (code[:, None] >> 40) + (numbers // 2) * _STRIDE
        signs = 1 - 2 * (numbers % 2)
        return (table[places % _NOISE] * signs[:, None]).flatten(0, 1)

    def scatter_(
        self, gradients: Sequence[Tensor | None], indices: Tensor, dx: Tensor, noise: Tensor | None = None
    ) -> None:
        """Add the gradient of x `[n, D]` to gradients shaped like the tables, or None: the transpose of ``forward``.

        :param noise: of ``draw``, whose transpose it is then.
        """
        parts = list(dx.split(self.ranks, dim=-1))
        if noise is not None and any(gradient is not None for gradient in gradients[len(self) : 2 * len(self)]):
            parts += (dx * noise[:, : self.dim] * self._deviations(indices).detach()).split(self.ranks, dim=-1)
        for place, (gradient, part) in enumerate(zip(gradients, parts, strict=False)):  # those of biases come after
            if gradient is not None:
                gradient.index_add_(0, indices[:, place % len(self)].long(), part)

    def log_prior(self) -> Tensor:
        r"""The log of the standard normal prior without its constant, :math:`-\frac12 \sum_k \|U^{(k)}\|_F^2`.

        With draws, minus the Kullback-Leibler divergence of the posterior of the factors from it,
        :math:`\frac12 \sum (1 + 2 \log \sigma - \sigma^2 - u^2)`. Biases of a mode have the prior :math:`N(0, s^2)`, and s is
        where that divergence is smallest, :math:`s^2 = \mathrm{mean}(b^2 + \sigma^2)`.
        """
        terms = [-0.5 * table.square().sum() for table in self.weights]
        terms += [0.5 * log.numel() + log.sum() - 0.5 * (2.0 * log).exp().sum() for log in self.log_deviations]
        pairs = zip(self.bias_variances(), self.log_bias_deviations, strict=True)
        terms += [(log - 0.5 * square.log()).sum() for square, log in pairs]
        return torch.stack(terms).sum()

    def bias_variances(self) -> list[Tensor]:
        """Of each mode, the variance s^2 `[]` of its biases' prior; none where there are no biases."""
        pairs = zip(self.biases, self.log_bias_deviations, strict=True)
        return [(bias.square() + (2.0 * log).exp()).mean() for bias, log in pairs]

    def spread(self) -> Tensor:
        """The standard deviation `[D]` of factors over entities."""
        modes = len(self.entities)
        tables = [*self.weights[:modes], *(self[modes + mode][levels] for mode, levels in enumerate(self.levels))]
        return torch.cat([table.std(0, correction=0) for table in tables])

    def _deviations(self, indices: Tensor) -> Tensor:
        """Sigma `[n, D]`."""
        logs = [table[indices[:, mode].long()] for mode, table in enumerate(self.log_deviations)]
        return torch.cat(logs, dim=-1).exp()

    def check(self, indices: Any) -> Tensor:
        """Indices that can be gathered, with columns for levels, or an error that states the rule and what came."""
        return self.with_levels(check_indices(indices, self.entities), self.levels)

    @staticmethod
    def with_levels(indices: Tensor, levels: Sequence[Tensor]) -> Tensor:
        """Indices `[n, K]` and beside them the levels of their entities, if these are given for each mode."""
        columns = [table[indices[:, mode].long().to(table.device)].to(indices) for mode, table in enumerate(levels)]
        return torch.cat([indices, torch.stack(columns, dim=1)], dim=1) if columns else indices


def check_indices(indices: Any, shape: tuple[int, ...]) -> Tensor:
    """Indices `[n, K]` within a shape, or an error that states the rule and what came."""
    try:
        indices = torch.as_tensor(indices)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"indices must be a tensor or an array of integers. Got {type(indices).__name__}.") from error
    if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
        raise InputError(f"indices must be integers. Got {indices.dtype}.")
    if indices.dtype in (torch.uint16, torch.uint32, torch.uint64):
        indices = indices.long()  # torch has few operations for these
    if indices.dim() != 2 or indices.size(-1) != len(shape):
        raise InputError(f"indices must be [n, {len(shape)}], a column a mode. Got {list(indices.shape)}.")
    if len(indices):
        with one_core_each():
            lowest, highest = (bound.tolist() for bound in indices.aminmax(dim=0))
        for mode, (low, high) in enumerate(zip(lowest, highest, strict=True)):
            if low < 0 or high >= shape[mode]:
                bad = (indices[:, mode] < 0) | (indices[:, mode] >= shape[mode])
                row = int(bad.nonzero()[0])
                raise InputError(
                    f"indices of mode {mode} must lie in [0, {shape[mode]}). Got {int(indices[row, mode])} at row {row}."
                )
    checked: Tensor = indices
    return checked
