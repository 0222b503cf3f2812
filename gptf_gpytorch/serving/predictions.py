"""What a fitted model says of entries, in the user's units."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.serving.lookup import indices_of
from gptf_gpytorch.training.saved import FittedModel
from gptf_gpytorch.variational.prediction import Marginals
from gptf_gpytorch.wording import option


@dataclass(frozen=True)
class Predictions:
    """Predictions of n entries, each a tensor `[n]`.

    Real values are predicted in the user's units, with the noise of an observation. Of labels, ``mean`` is the
    probability of a 1, ``std`` the standard deviation of the label, and the interval that of the probability.
    """

    mean: Tensor
    std: Tensor
    lower: Tensor
    upper: Tensor
    probability: Tensor | None  # of a label 1; None for real values
    latent: Marginals  # q(f), in the units of training

    def __len__(self) -> int:
        return len(self.mean)

    def columns(self) -> dict[str, Tensor]:
        """The columns that a table of predictions has, by name."""
        probability = {} if self.probability is None else {"probability": self.probability}
        return {"mean": self.mean, "std": self.std, **probability, "lower": self.lower, "upper": self.upper}


def predict(
    fitted: FittedModel, entries: TensorEntries | Any, *, interval: float = 0.95, chunk_size: int = 3000
) -> Predictions:
    r"""Predictions of entries.

    With :math:`q(f) = N(m, v)` at an entry, units :math:`c` (centre) and :math:`s` (spread) and z the quantile of the
    interval, a real value has mean :math:`c + s m`, standard deviation :math:`s \sqrt{v + \sigma^2}` and the interval
    mean :math:`\pm z` standard deviations. A label is 1 with probability
    :math:`p = \Phi(m / \sqrt{1 + v})`, has standard deviation :math:`\sqrt{p (1 - p)}`, and the interval of the
    probability :math:`\Phi(f)` is :math:`[\Phi(m - z \sqrt v), \Phi(m + z \sqrt v)]`.

    An entry with an entity that the model does not know (row -1, see ``unseen="prior"``): the default method takes the prior
    of that mode's rows, and keeps what is known of the entry's other entities. The paper's method has the prior of f: the value
    of the mean function, and the variance of the kernel and of biases. To learn a new entity, fold it in:
    :func:`gptf_gpytorch.serving.fold_in.fold_in`.

    :param fitted: the model.
    :param entries: entries that were read with the model's vocabularies, or indices `[n, K]`.
    :param interval: the probability that the interval holds, in (0, 1).
    :param chunk_size: entries at a time.

    Example:
        >>> found = predict(fitted, [[0, 0, 0], [1, 2, 3], [-1, 2, 3]])
        >>> found.mean.shape, bool((found.lower < found.upper).all())
        (torch.Size([3]), True)

    """
    return predictions_of(fitted, fitted.latent(indices_of(fitted, entries), chunk_size), interval=interval)


def predictions_of(
    fitted: FittedModel, f: Marginals, *, interval: float = 0.95, probability: Tensor | None = None
) -> Predictions:
    """What moments of f say of entries, in the user's units.

    :param probability: of labels 1, where it is not that of a normal f.
    """
    z = _quantile(interval)
    with torch.no_grad():
        if fitted.binary:
            if probability is None:
                probability = torch.special.ndtr(f.mean / (1.0 + f.variance).sqrt())
            std = (probability * (1.0 - probability)).sqrt()
            half = z * f.variance.sqrt()
            lower, upper = torch.special.ndtr(f.mean - half), torch.special.ndtr(f.mean + half)
            return Predictions(probability, std, lower, upper, probability, f)
        scaling, noise = fitted.scaling, fitted.likelihood.noise.squeeze()
        mean, std = scaling.centre + scaling.spread * f.mean, scaling.spread * (f.variance + noise).sqrt()
        return Predictions(mean, std, mean - z * std, mean + z * std, None, f)


def _quantile(interval: float) -> float:
    """How many standard deviations hold the interval on either side of the mean."""
    if isinstance(interval, bool) or not isinstance(interval, int | float) or not 0.0 < interval < 1.0:
        raise InputError(f"{option('interval')} must be a probability in (0, 1). Got {interval!r}.")
    return float(torch.special.ndtri(torch.tensor(0.5 + 0.5 * interval, dtype=torch.float64)))
