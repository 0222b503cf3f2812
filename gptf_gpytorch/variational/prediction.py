"""q(f) at many entries: mean and variance, chunk by chunk, without the covariance between entries."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import gpytorch
import torch
from torch import Tensor

from gptf_gpytorch.distributed.threads import split
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.factors import LatentFactors
from gptf_gpytorch.variational import checks
from gptf_gpytorch.variational.paths import workspace
from gptf_gpytorch.variational.shards import EntryChunk, EntryShard, one_by_one
from gptf_gpytorch.variational.stationary import recognise
from gptf_gpytorch.variational.strategy import CollapsedVariationalStrategy
from gptf_gpytorch.variational.workspace import Scratch

#: Draws of an entry's factors that a prediction is the mean of.
DRAWS = 16
# Chunks that are mapped at a time, so that memory is flat in the number of entries.
_LEG = 50


class Marginals(NamedTuple):
    """The moments of q(f), entry by entry."""

    mean: Tensor  # [n]
    variance: Tensor  # [n]


def marginals(model: gpytorch.models.ApproximateGP, inputs: Any, *, chunk_size: int = 3000) -> Marginals:
    r"""Mean and variance of q(f) at any number of entries, equal to those of ``model.eval()(inputs)``.

    .. math:: \mathrm E f = \mu + m' w, \qquad \mathrm{Var} f = k(x, x) - w' w + w' M^{-1} w

    with the whitened features w of a chunk, so that memory is O(chunk p). q(v) is compared with the parameters once.
    There is no gradient. Where the factors have a posterior, f is a mixture over draws of them that training has not
    seen, with mean :math:`\mathrm E m` and variance :math:`\mathrm E v + \mathrm{Var}\, m`, while ``model.eval()(inputs)`` is
    at the mean of the factors.

    :param model: a model whose strategy is a :class:`CollapsedVariationalStrategy`; its mode does not matter.
    :param inputs: indices `[n, K]` if it has factors, else x `[n, D]`.
    :param chunk_size: entries at a time.

    Example:
        >>> model = GPTF(shape=(30, 40), rank=2, num_inducing=20)
        >>> mean, variance = marginals(model, torch.cartesian_prod(torch.arange(30), torch.arange(40)))
        >>> variance.shape
        torch.Size([1200])

    """
    strategy = model.variational_strategy
    if not isinstance(strategy, CollapsedVariationalStrategy) or strategy.inducing_points.dim() != 2:
        raise InputError(
            "marginals() takes a model with a CollapsedVariationalStrategy and inducing points [p, D]. "
            f"Got {type(strategy).__name__} and {list(strategy.inducing_points.shape)}."
        )
    chunk_size = checks.positive_integer("chunk_size", chunk_size)
    found = getattr(model, "factors", None)
    factors = found if isinstance(found, LatentFactors) else None
    points = strategy.inducing_points
    if factors is not None:
        inputs = factors.check(inputs)
    else:
        inputs = checks.tensor("Inputs", inputs)
        inputs = inputs.unsqueeze(-1) if inputs.dim() == 1 else inputs
        checks.plain_inputs(inputs, points.size(-1))
    first = 0 if factors is None else factors.draws
    draws = range(first + first % 2, first + first % 2 + DRAWS) if first else range(0)
    shard = EntryShard(inputs, torch.empty(0), None, factors, chunk_size, points.device, points.dtype, draws)
    strategy.ensure_fresh()
    was_training = model.training
    with torch.no_grad():
        try:
            model.eval()
            prior = recognise(model, points)
            job = _Generic(strategy) if prior is None else _Fused(strategy, prior)
            chunks, found = shard.chunks(), [Marginals(points.new_empty(0), points.new_empty(0))]
            for start in range(0, len(chunks), _LEG):
                for parts in split(job, chunks[start : start + _LEG], prior is not None):
                    found += [_mixture(mean, variance, shard.copies) for mean, variance in parts]
        finally:
            model.train(was_training)
        return Marginals(*(torch.cat(part) for part in zip(*found, strict=True)))


def _mixture(mean: Tensor, variance: Tensor, copies: int) -> Marginals:
    """The moments `[n]` of mixtures of so many normal distributions each, which stand one after the other."""
    if copies == 1:
        return Marginals(mean, variance)
    mean, variance = mean.view(-1, copies), variance.view(-1, copies)
    centre = mean.mean(1)
    return Marginals(centre, variance.mean(1) + (mean - centre[:, None]).square().mean(1))


class _Generic:
    """Any model: GPyTorch's own strategy, a chunk at a time."""

    def __init__(self, strategy: CollapsedVariationalStrategy) -> None:
        self.strategy = strategy

    def __call__(self, chunks: Sequence[EntryChunk]) -> list[tuple[Tensor, Tensor]]:
        found = []
        for chunk in one_by_one(chunks):
            q = super(CollapsedVariationalStrategy, self.strategy).__call__(chunk.gather())
            found.append(_with_biases(chunk, q.mean, q.variance))
        return found


class _Fused:
    r"""Stationary kernels: one product a chunk.

    With :math:`I - M^{-1} = R' R` and :math:`T = R L^{-1}`, the variance is :math:`k(x, x) - |T k_x|^2`. Directions in
    which q(v) equals the prior have no row in R.
    """

    def __init__(self, strategy: CollapsedVariationalStrategy, prior: Any) -> None:
        _, L = strategy.factor(may_raise_jitter=False)
        q = strategy._variational_distribution
        self.space = workspace(prior, L, Scratch(), explicit=True)
        L_inv, C = self.space.L_inv, q.chol_variational_covar
        learned, directions = torch.linalg.eigh(torch.eye(len(C), dtype=C.dtype, device=C.device) - C @ C.mT)
        some = learned > torch.finfo(C.dtype).eps
        R = (directions[:, some] * learned[some].sqrt()).mT
        self.lam, self.T = q.variational_mean @ L_inv, (R @ L_inv).contiguous()
        # GPyTorch adds the jitter to the variance of f, too.
        self.variance = self.space.outputscale + strategy.jitter_val

    def __call__(self, chunks: Sequence[EntryChunk]) -> list[tuple[Tensor, Tensor]]:
        found = []
        for run in self.space.runs(chunks):
            mean, explained = self.space.project(run, self.lam, self.T)
            found.append(_with_biases(run, mean + self.space.mean, self.variance - explained))
        return found


def _with_biases(chunk: EntryChunk, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    return (mean, variance) if chunk.offset is None else (mean + chunk.offset[0], variance + chunk.offset[1])
