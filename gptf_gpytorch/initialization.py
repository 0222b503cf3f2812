"""A start that works: small random factors, k-means inducing points, scales from the data; and restarts."""

import warnings
from collections.abc import Callable
from copy import deepcopy

import gpytorch
import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from gptf_gpytorch.errors import InputError
from gptf_gpytorch.factors import LatentFactors
from gptf_gpytorch.variational.elbo import CollapsedELBO

# Entries that k-means looks at: enough for good centres at any p, and a second's work.
_SAMPLE = 20_000


def initialize(mll: CollapsedELBO, inputs: Tensor, target: Tensor, *, seed: int = 0, scale: float = 0.1) -> None:
    r"""Set a model and its likelihood to a good start for these entries.

    Factors are drawn with standard deviation ``scale``: with small factors the function starts nearly constant and
    grows as the data asks, and reaches better bounds than from the prior's scale of 1. Inducing points are the
    k-means centres of the entries' inputs. The outputscale becomes the mean square of the targets around the mean
    function, and the noise a fraction of it; the probit likelihood has no scale, and its outputscale becomes 1.
    Lengthscales stay as they are.

    Deterministic in ``seed``. With several workers a collective: worker 0's entries choose the inducing points, all
    entries the scales, and all workers end with the same numbers.

    :param inputs: this worker's indices `[n, K]`, or plain inputs `[n, D]`.
    :param target: their values `[n]`.
    """
    generator = torch.Generator().manual_seed(seed)
    model, strategy, communicator = mll.model, mll.strategy, mll.communicator
    points = strategy.inducing_points
    if points.dim() != 2:
        raise InputError(f"initialize() is for inducing points [p, D]. Got {list(points.shape)}.")
    factors = getattr(model, "factors", None)
    with torch.no_grad():
        if isinstance(factors, LatentFactors):
            inputs = factors.check(torch.as_tensor(inputs))
            for table in factors.weights:
                table.copy_(scale * torch.randn(table.shape, generator=generator, dtype=table.dtype))
        else:
            factors = None
        centres = torch.zeros_like(points)
        if communicator.rank == 0:
            chosen = torch.randperm(len(inputs), generator=generator)[:_SAMPLE]
            sample = inputs[chosen.to(inputs.device)]
            x = sample if factors is None else factors(sample.to(points.device))
            centres.copy_(_centres(x, len(points), seed))
        points.copy_(communicator.broadcast(centres))
        # The targets' mean square around the mean function, over all workers; a sample of entries will do for the mean.
        x = inputs[:_SAMPLE] if factors is None else factors(inputs[:_SAMPLE].to(points.device))
        residual = target[:_SAMPLE].to(points) - (model.forward(x).mean if len(x) else 0.0)
        sums = communicator.sum(torch.stack([residual.square().sum(), residual.new_tensor(len(residual))]))
        square = float((sums[0] / sums[1]).clamp_min(1e-12))
        gaussian = isinstance(mll.likelihood, gpytorch.likelihoods.GaussianLikelihood)
        if isinstance(model.covar_module, gpytorch.kernels.ScaleKernel):
            model.covar_module.outputscale = square if gaussian else 1.0
        if gaussian:
            constraint = mll.likelihood.noise_covar.raw_noise_constraint
            mll.likelihood.noise = max(0.5 * square, 1.01 * float(constraint.lower_bound))


def restart(
    mll: CollapsedELBO,
    inputs: Tensor,
    target: Tensor,
    *,
    restarts: int,
    train: Callable[[CollapsedELBO], None] | None = None,
    seed: int = 0,
) -> list[float]:
    """Start from several seeds and keep the model with the best bound, with q(v) up to date.

    :param restarts: how many seeds, from ``seed`` on.
    :param train: what is done after each start before the bounds are compared; nothing by default.
    :return: the bound that each start reached, divided by ``num_data``.
    """
    if restarts < 1:
        raise InputError(f"restarts must be at least 1. Got {restarts}.")
    bounds: list[float] = []
    best: dict[str, Tensor] = {}
    for attempt in range(restarts):
        initialize(mll, inputs, target, seed=seed + attempt)
        if train is not None:
            train(mll)
        mll.model.train()
        bound = mll(mll.model(inputs), target).item()  # with gradients: writes q(v)
        if not bounds or bound > max(bounds):
            best = deepcopy(mll.state_dict())
        bounds.append(bound)
    mll.load_state_dict(best)
    return bounds


def _centres(x: Tensor, p: int, seed: int) -> Tensor:
    """The p k-means centres of the rows of x; distinct ones even if x has fewer distinct rows."""
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
