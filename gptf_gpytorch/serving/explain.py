"""What a fitted model has learned: which modes matter, and which entities are alike."""

from typing import Any, NamedTuple, cast

import gpytorch
import torch
from torch import Tensor

from gptf_gpytorch.errors import InputError
from gptf_gpytorch.kernels import FactorRBFKernel
from gptf_gpytorch.serving.lookup import count_of, ids_of, mode_of, row_of
from gptf_gpytorch.training.saved import FittedModel, PaperModel, SampledModel
from gptf_gpytorch.variational.stationary import recognise


class Neighbour(NamedTuple):
    """An entity and how far it is."""

    id: Any
    distance: float


# Entries at which the parts of a model are compared.
_PROBES = 20_000


def shares(fitted: SampledModel) -> dict[str, float]:
    """Which share of the variance of f has each part of a sampled model: biases, pairs, products, counts, Gaussian process.

    Over random cells of entities that occur in training. The shares add up to 1.
    """
    generator = torch.Generator().manual_seed(0)
    columns = [ids[torch.randint(len(ids), (_PROBES,), generator=generator)] for ids in fitted.entities.ids]
    return fitted.shares(torch.stack(columns, dim=1))


def relevance(fitted: PaperModel) -> dict[str, float]:
    r"""How much each mode moves the function, as shares that add up to 1; of the paper's method.

    A mode's share is proportional to :math:`\sum_d s_{kd}^2 / \ell_{kd}^2`, with the standard deviations s of its
    factors and their lengthscales; see :meth:`gptf_gpytorch.FactorRBFKernel.relevance`. It is the same for RBF and
    Matern kernels, which see nothing but the length-scaled distance. How often an entity occurs counts with its mode; biases are
    left out.

    Example:
        >>> round(sum(relevance(fitted).values()), 6)
        1.0

    """
    factors = fitted.model.factors
    kernel = FactorRBFKernel(factors.ranks).to(factors[0])
    with torch.no_grad():
        kernel.lengthscale = _lengthscales(fitted)
        shares = kernel.relevance(factors.spread()).view(-1, len(factors.entities)).sum(0).tolist()
    return dict(zip(fitted.mode_names, shares, strict=True))


def neighbours(fitted: FittedModel, mode: str, entity: Any, top: int = 10) -> list[Neighbour]:
    r"""The entities of a mode that are nearest to one of them, nearest first.

    Of a sampled model, the distance is that between mean rows, in units of their mean standard deviation. Of the
    paper's, it is that of the kernel, :math:`\bigl(\sum_d (u_d - u'_d)^2 / \ell_d^2\bigr)^{1/2}`: entities at distance 0 are
    one and the same to the model (but for biases and how often they occur), and those far beyond 1 have little to do with
    each other.

    :param entity: its id.
    :param top: how many; fewer come where there are fewer.

    Example:
        >>> nearest = neighbours(fitted, "user", "u01", top=3)
        >>> len(nearest), nearest[0].distance <= nearest[1].distance
        (3, True)

    """
    place, top = mode_of(fitted, mode), count_of(top)
    row = row_of(fitted, place, entity)
    known, scaled = _known_factors(fitted, place)
    here = (known == row).nonzero()[:, 0]
    if not len(here):
        raise InputError(f"An entity must have entries in training to have neighbours. Got {entity!r}, which has none.")
    distance = (scaled - scaled[here[0]]).norm(dim=1)
    order = distance.argsort(stable=True)
    order = order[known[order] != row][:top]
    ids = ids_of(fitted, place, known[order])
    return [Neighbour(item, far) for item, far in zip(ids, distance[order].tolist(), strict=True)]


def _known_factors(fitted: FittedModel, mode: int) -> tuple[Tensor, Tensor]:
    """Entities of a mode of which something is known, and their factors `[a, D]`, scaled so that distances compare."""
    if isinstance(fitted, SampledModel):
        rows = fitted.mean_rows(mode)
        return fitted.entities.ids[mode], rows / rows.std(0, correction=0).clamp(min=1e-12).mean()
    factors = scaled_factors(cast(PaperModel, fitted), mode)
    return torch.arange(len(factors)), factors


def scaled_factors(fitted: PaperModel, mode: int) -> Tensor:
    """The factors of a mode's entities in units of their lengthscales: the kernel's distance is that between them."""
    with torch.no_grad():
        found: Tensor = fitted.model.factors[mode] / _lengthscales(fitted).split(fitted.model.factors.ranks)[mode]
    return found


def _lengthscales(fitted: PaperModel) -> Tensor:
    """One for each of the D concatenated factors."""
    model: gpytorch.models.ApproximateGP = fitted.model
    prior = recognise(model, fitted.mll.strategy.inducing_points)
    if prior is None:
        raise InputError(
            f"The kernel must be RBF or Matern, with lengthscales. Got {type(model.covar_module).__name__}."
        )
    return prior.lengthscale.detach().expand(fitted.model.factors.dim)
