"""Entries some of whose entities are left open: what is to be expected, whichever entities those are."""

import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gptf_gpytorch.distributed.threads import one_core_each, split
from gptf_gpytorch.errors import ApproximationWarning
from gptf_gpytorch.training.saved import FittedModel, PaperModel
from gptf_gpytorch.variational.prediction import Marginals
from gptf_gpytorch.variational.stationary import StationaryPrior, recognise

_CHUNK = 2**12
#: Predictions that an average over combinations may cost; beyond it, a seeded sample of them stands for all.
_BUDGET = 2**17
_FEWEST = 16


def averaged(fitted: FittedModel, indices: Tensor, modes: Sequence[int]) -> Marginals:
    r"""Mean and variance of f at entries `[n, K]` whose entities of some modes are drawn at random, all as likely.

    f is then a mixture of normals :math:`N(m, v)`, with mean :math:`\mathrm E m` and variance
    :math:`\mathrm E v + \mathrm{Var}\, m`. An RBF kernel is a product over modes, so that the averages over
    all combinations of entities need only those of each mode, :math:`\mathrm E k` and :math:`\mathrm E k k'`. For other kernels,
    for factors with a posterior, for biases and where it matters how often entities occur, a seeded sample stands for the
    combinations, where there are many.

    :param modes: the open ones; their columns of the indices are not looked at.
    """
    with torch.no_grad(), one_core_each():
        product = _product(fitted, modes)
        if product is not None:
            parts = _threaded(product, indices)
        else:
            parts = [_mixed(fitted, part, modes) for part in indices.split(_CHUNK)]
    means, variances = zip(*parts, strict=True)
    return Marginals(torch.cat(means), torch.cat(variances))


def average_probability(fitted: FittedModel, indices: Tensor, modes: Sequence[int]) -> Tensor:
    """The probability of a label 1 at such entries, `[n]`: the mean of the probabilities of the combinations."""
    f = _crossed(fitted, indices, modes)
    found: Tensor = torch.special.ndtr(f.mean / (1.0 + f.variance).sqrt()).mean(1)
    return found


def _product(fitted: FittedModel, modes: Sequence[int]) -> "_Product | None":
    """The averages of a kernel that is a product over modes, at factors that are point estimates; None for other models."""
    if not isinstance(fitted, PaperModel):
        return None
    prior, factors = recognise(fitted.model, fitted.mll.strategy.inducing_points), fitted.model.factors
    plain = not (factors.draws or factors.biases or factors.occurrences)
    return _Product(fitted, prior, modes) if prior is not None and not prior.slope_differs and plain else None


class _Product:
    """RBF: with the kernel of the open modes averaged, an entry costs what a prediction costs."""

    def __init__(self, fitted: PaperModel, prior: StationaryPrior, modes: Sequence[int]) -> None:
        strategy, factors = fitted.mll.strategy, fitted.model.factors
        strategy.ensure_fresh()
        closed = [mode for mode in range(len(fitted.shape)) if mode not in modes]
        scales = prior.lengthscale.expand(factors.dim).split(factors.ranks)
        points = prior.inducing_points.split(factors.ranks, dim=1)
        tables = [table / scale for table, scale in zip(factors.weights, scales, strict=True)]
        self.points = [point / scale for point, scale in zip(points, scales, strict=True)]
        self.tables, self.closed = tables, closed
        self.closed_points = torch.cat([self.points[mode] for mode in closed], dim=1)
        k = torch.ones_like(self.points[0][:, 0])  # E k [p]
        kk = k.outer(k)  # E k k' [p, p]
        for mode in modes:
            found = _threaded(_Sums(self.points[mode]), tables[mode])
            k = k * sum(part for part, _ in found) / len(tables[mode])
            kk = kk * sum(part for _, part in found) / len(tables[mode])
        _, L = strategy.factor(may_raise_jitter=False)
        q = strategy._variational_distribution
        eye = torch.eye(len(k), dtype=k.dtype)
        lam = torch.linalg.solve_triangular(L.mT, q.variational_mean[:, None], upper=True)[:, 0]
        C = q.chol_variational_covar
        explained = torch.linalg.solve_triangular(L, eye, upper=False)
        explained = explained.mT @ (eye - C @ C.mT) @ explained
        self.scale, self.mean = prior.outputscale, k.new_zeros(()) if prior.mean is None else prior.mean
        self.weights = self.scale * k * lam
        self.square = self.scale**2 * kk * (lam.outer(lam) - explained)  # of E m^2 - E (what q(v) explains)
        self.variance = self.scale + strategy.jitter_val

    def __call__(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([self.tables[mode][indices[:, mode].long()] for mode in self.closed], dim=1)
        K = _rbf(x, self.closed_points)  # [n, p]
        mean = K @ self.weights
        variance = self.variance + torch.linalg.vecdot(K @ self.square, K) - mean.square()
        return mean + self.mean, variance.clamp(min=0.0)


class _Sums:
    """The sums of k `[p]` and of k k' `[p, p]` over rows of factors."""

    def __init__(self, points: Tensor) -> None:
        self.points = points

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        K = _rbf(rows, self.points)
        return K.sum(0), K.mT @ K


def _threaded(job: Callable[[Tensor], tuple[Tensor, Tensor]], rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What a job says of each piece of the rows; a thread for each core, each with pieces that fit into its cache."""
    found = split(lambda pieces: [job(piece) for piece in pieces], rows.split(_CHUNK), threaded=True)
    return [part for parts in found for part in parts]


def _rbf(x: Tensor, y: Tensor) -> Tensor:
    """The kernel of scaled factors `[n, D]` and points `[p, D]`, without the outputscale: `[n, p]`."""
    x = torch.cat([x, x.new_ones(len(x), 1), x.square().sum(1, keepdim=True).mul_(-0.5)], dim=1)
    y = torch.cat([y, y.square().sum(1, keepdim=True).mul_(-0.5), y.new_ones(len(y), 1)], dim=1)
    return (x @ y.mT).exp_()


def _mixed(fitted: FittedModel, indices: Tensor, modes: Sequence[int]) -> tuple[Tensor, Tensor]:
    f = _crossed(fitted, indices, modes)
    return f.mean.mean(1), f.variance.mean(1) + f.mean.var(1, correction=0)


def _crossed(fitted: FittedModel, indices: Tensor, modes: Sequence[int]) -> Marginals:
    """q(f) `[n, combinations]` of every entry with combinations of entities of the open modes: all, or a sample."""
    sizes = [fitted.shape[mode] for mode in modes]
    most, every = max(_FEWEST, _BUDGET // max(1, len(indices))), math.prod(sizes)
    if every <= most:
        chosen = torch.cartesian_prod(*map(torch.arange, sizes)).reshape(-1, len(modes))
    else:
        warnings.warn(
            f"averages are over a seeded sample of the {every:,} combinations of entities that are left open",
            ApproximationWarning,
            stacklevel=2,
        )
        generator = torch.Generator().manual_seed(0)
        chosen = torch.stack([torch.randint(size, (most,), generator=generator) for size in sizes], dim=1)
    crossed = indices[:, None].repeat(1, len(chosen), 1)
    crossed[:, :, list(modes)] = chosen
    f = fitted.latent(crossed.flatten(0, 1))
    return Marginals(f.mean.view(-1, len(chosen)), f.variance.view(-1, len(chosen)))
