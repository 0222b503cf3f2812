"""A start that works: small random factors, k-means inducing points, scales from the data; and restarts."""

import math
import warnings
from collections.abc import Callable
from copy import deepcopy

import gpytorch
import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.distributed.communicator import Communicator
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.factors import LatentFactors
from gptf_gpytorch.variational.checks import positive_integer
from gptf_gpytorch.variational.elbo import CollapsedELBO
from gptf_gpytorch.variational.shards import EntryChunk, EntryShard

# Entries that k-means looks at: enough for good centres at any p, and a second's work.
_SAMPLE = 20_000


def initialize(
    mll: CollapsedELBO,
    inputs: Tensor,
    target: Tensor,
    *,
    seed: int = 0,
    scale: float = 0.1,
    weights: Tensor | None = None,
) -> None:
    r"""Set a model and its likelihood to a good start for these entries.

    Factors are drawn with standard deviation ``scale``: with small factors the function starts nearly constant and
    grows as the data asks, and reaches better bounds than from the prior's scale of 1. Inducing points are the
    k-means centres of the entries' inputs. A constant mean becomes the targets' mean (for labels, its probit); the
    outputscale becomes the mean square of the targets around the mean function, and the noise half of it; for labels
    the outputscale becomes 1. Lengthscales, and whatever needs no gradient, stay as they are. Where factors have a
    posterior, its deviations become ``scale``, too: hold them there for the first steps, as ``fit`` does, or their prior
    makes noise of them before there is a function that needs them. An entity without entries gets its prior, which is
    its posterior. Where it matters how often entities occur, the entries of all workers say it. Biases become 0, with the
    deviations that so many entries of noise 1 leave of a prior of variance 1/4.

    Deterministic in ``seed``. With several workers a collective: a sample of all entries chooses the inducing points, all
    entries the scales, and all workers end with the first one's parameters. The start depends on the entries in the
    order of ranks, and not on how many workers they are dealt to.

    :param inputs: this worker's indices `[n, K]`, or plain inputs `[n, D]`.
    :param target: their values `[n]`.
    :param seed: of the factors and of k-means.
    :param scale: the factors' standard deviation.
    :param weights: the entries' weights `[n]`.
    """
    generator = torch.Generator().manual_seed(seed)
    model, strategy = mll.model, mll.strategy
    points = strategy.inducing_points
    if points.dim() != 2:
        raise InputError(f"initialize() is for inducing points [p, D]. Got {list(points.shape)}.")
    factors = getattr(model, "factors", None)
    factors = factors if isinstance(factors, LatentFactors) else None
    if factors is not None and factors.occurrences:
        factors.count_(_occurrences(factors.check(inputs), factors.entities, mll.communicator))
    inputs = torch.as_tensor(inputs) if factors is None else factors.check(inputs)
    if factors is None and inputs.dim() == 1:
        inputs = inputs.unsqueeze(-1)  # as ApproximateGP does
    shard = mll.check(strategy.defer(inputs, factors), target, weights)
    with torch.no_grad():
        if factors is not None:
            for table in factors.weights:
                if table.requires_grad:
                    table.copy_(scale * torch.randn(table.shape, generator=generator, dtype=table.dtype))
        communicator = mll.communicator
        if factors is not None and (factors.draws or factors.biases):
            _set_posteriors(factors, inputs, communicator, scale)
        counts = torch.zeros(communicator.size, dtype=torch.int64)
        counts[communicator.rank] = inputs.size(-2)
        counts = communicator.sum(counts)
        if not int(counts.sum()):
            raise InputError("There must be entries to start from. Got none.")
        sample = _sample(inputs, counts, communicator, seed).to(points.device)
        if communicator.rank == 0:
            x = sample.to(points) if factors is None else factors(sample)
            if factors is not None and factors.draws:
                x = factors.draw(sample, factors.noise(sample, range(1)))
            points.copy_(_centres(x, len(points), seed))
        _broadcast(mll)
        _set_scales(mll, shard)


def _set_posteriors(factors: LatentFactors, indices: Tensor, communicator: Communicator, scale: float) -> None:
    """The start of the posterior of factors and biases; an entity that no worker has an entry of gets its prior."""
    counts = _occurrences(indices, factors.shape, communicator)
    for mean, log_deviation, count in zip(factors.weights, factors.log_deviations, counts, strict=False):
        if mean.requires_grad and log_deviation.requires_grad:
            log_deviation.fill_(math.log(scale))
            log_deviation[count == 0], mean[count == 0] = 0.0, 0.0
    for bias, log_deviation, count in zip(factors.biases, factors.log_bias_deviations, counts, strict=False):
        if bias.requires_grad and log_deviation.requires_grad:
            bias.zero_()
            # What it is for noise of variance 1 and a prior of variance 1/4.
            log_deviation.copy_(-0.5 * (4.0 + count[:, None]).to(bias).log())


def _occurrences(indices: Tensor, shape: tuple[int, ...], communicator: Communicator) -> tuple[Tensor, ...]:
    """Of each of the first modes, those of the shape, how many entries of all workers its entities have."""
    mine = [torch.bincount(column.long(), minlength=d) for column, d in zip(indices.T, shape, strict=False)]
    counts: tuple[Tensor, ...] = communicator.sum(torch.cat(mine)).split(shape)
    return counts


def _sample(inputs: Tensor, counts: Tensor, communicator: Communicator, seed: int) -> Tensor:
    """Some of the inputs of all workers, the same ones on each: those in the order of ranks at seeded places."""
    total, before = int(counts.sum()), int(counts[: communicator.rank].sum())
    places = np.random.default_rng(seed).choice(total, size=min(total, _SAMPLE), replace=False)
    mine = (places >= before) & (places < before + len(inputs))
    # int64, because narrower integers may not be summed everywhere.
    sample = inputs.new_zeros((len(places), inputs.size(-1)), dtype=None if inputs.is_floating_point() else torch.int64)
    sample[torch.from_numpy(mine)] = inputs[torch.from_numpy(places[mine] - before)].to(sample)
    return communicator.sum(sample)


def _broadcast(mll: CollapsedELBO) -> None:
    """Worker 0's parameters, as one vector."""
    parameters = list(mll.parameters())
    flat = mll.communicator.broadcast(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.copy_(part.view_as(parameter))


def _set_scales(mll: CollapsedELBO, shard: EntryShard) -> None:
    """Mean, outputscale and noise from all entries of all workers."""
    model, likelihood = mll.model, mll.likelihood
    gaussian = isinstance(likelihood, gpytorch.likelihoods.GaussianLikelihood)
    mean, kernel = getattr(model, "mean_module", None), getattr(model, "covar_module", None)
    if isinstance(mean, gpytorch.means.ConstantMean) and mean.raw_constant.requires_grad and not mean.constant.dim():
        total, count = _sums(mll, shard, lambda chunk: chunk.v * chunk.y)
        rate = torch.tensor(total / count)
        mean.initialize(constant=float(rate if gaussian else torch.special.ndtri(rate.clamp(0.01, 0.99))))
    square = 1.0
    if gaussian:
        total, count = _sums(mll, shard, lambda c: c.v * (c.y - model.forward(c.gather()).mean).square())
        square = max(total / count, 1e-12)
    if isinstance(kernel, gpytorch.kernels.ScaleKernel) and kernel.raw_outputscale.requires_grad:
        kernel.outputscale = square
    if gaussian and likelihood.noise_covar.raw_noise.requires_grad:
        bounds = likelihood.noise_covar.raw_noise_constraint
        low, high = float(bounds.lower_bound), float(bounds.upper_bound)
        likelihood.noise = min(max(0.5 * square, 1.01 * low), 0.99 * high)


def _sums(mll: CollapsedELBO, shard: EntryShard, term: Callable[[EntryChunk], Tensor]) -> tuple[float, float]:
    """The sum of a term over all entries of all workers, and the sum of their weights."""
    sums = torch.zeros(2, dtype=shard.dtype, device=shard.device)
    for chunk in shard.chunks():
        sums += torch.stack([term(chunk).sum(), chunk.v.sum()])
    total, count = mll.communicator.sum(sums).tolist()
    return total, count


def restart(
    mll: CollapsedELBO,
    inputs: Tensor,
    target: Tensor,
    *,
    restarts: int,
    train: Callable[[CollapsedELBO], None] | None = None,
    seed: int = 0,
    scale: float = 0.1,
    weights: Tensor | None = None,
) -> list[float]:
    """Start from several seeds and keep the model with the best bound, with q(v) up to date.

    Every start begins with the model as it was given; what :func:`initialize` leaves alone is not handed on.

    :param inputs: this worker's indices `[n, K]`, or plain inputs `[n, D]`.
    :param target: their values `[n]`.
    :param restarts: how many seeds, from ``seed`` on.
    :param train: what is done after each start, in training mode, before the bounds are compared; nothing by default.
    :param seed: the first seed.
    :param scale: the factors' standard deviation.
    :param weights: the entries' weights `[n]`.
    :return: the bound that each start reached, divided by ``num_data``.
    """
    restarts = positive_integer("restarts", restarts)
    bounds: list[float] = []
    untouched, best = deepcopy(mll.state_dict()), {}
    for attempt in range(restarts):
        mll.load_state_dict(untouched)
        initialize(mll, inputs, target, seed=seed + attempt, scale=scale, weights=weights)
        mll.model.train()
        with torch.enable_grad():
            if train is not None:
                train(mll)
            mll.model.train()
            bound = mll(mll.model(inputs), target, weights=weights).item()  # writes q(v)
        if not bounds or bound > max(bounds):
            best = deepcopy(mll.state_dict())
        bounds.append(bound)
    mll.load_state_dict(best)
    mll.refresh()
    return bounds


def _centres(x: Tensor, p: int, seed: int) -> Tensor:
    """The p k-means centres of the rows of x; distinct ones even if x has fewer distinct rows."""
    # Here, because importing scikit-learn takes as long as importing torch.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    rows = x.detach().cpu().double().numpy()
    spread = rows.std(axis=0).mean() or 1.0
    if len(np.unique(rows, axis=0)) < 2 * p:
        # Near-duplicate centres would make K_BB singular: look around the rows instead of at them.
        noise = np.random.default_rng(seed).normal(scale=0.1 * spread, size=(max(2 * p, len(rows)), rows.shape[1]))
        rows = rows[np.arange(len(noise)) % len(rows)] + noise
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(n_clusters=p, n_init=1, max_iter=25, random_state=seed).fit(rows)
    return torch.as_tensor(found.cluster_centers_, dtype=x.dtype, device=x.device)
