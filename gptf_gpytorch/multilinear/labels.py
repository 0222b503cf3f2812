"""The value behind a label: a normal number on the side of zero that the label says (Albert and Chib)."""

import math

import torch
from torch import Tensor

# Below this, ratios of normal probabilities are taken through their logarithms.
_TAIL = -6.0


def latent_values(sides: Tensor, f: Tensor, uniform: Tensor) -> Tensor:
    """Numbers z ~ N(f, 1) with sign ``sides`` (-1 or 1), from uniform numbers in (0, 1).

    With m = s f, the tail of s z beyond x has the probability Phi(m - x) / Phi(m): it is m - Phi^-1(u Phi(m)).
    """
    m = sides * f
    t = torch.special.ndtri(uniform * torch.special.ndtr(m))
    far = m < _TAIL
    if bool(far.any()):
        t[far] = _log_ndtri(uniform[far].log() + torch.special.log_ndtr(m[far]))
    z: Tensor = sides * (m - t).clamp(min=0.0)
    return z


def _log_ndtri(y: Tensor) -> Tensor:
    """The t with log Phi(t) = y for y far below 0: Newton's method on a concave function, from the right."""
    t = -(-2.0 * y).sqrt()
    for _ in range(6):
        slope = math.sqrt(2.0 / math.pi) / torch.special.erfcx(-t / math.sqrt(2.0))
        t = t - (torch.special.log_ndtr(t) - y) / slope
    return t


def mean_latent_values(sides: Tensor, f: Tensor, uniform: Tensor, weights: Tensor) -> Tensor:
    """The mean of as many values as an entry has labels (its weight), each with sign ``sides``.

    Of more than one label it is the normal approximation, which is good from a few dozen on; fewer labels are better repeated
    as entries of their own. A weight below 1 is one label that counts less.
    """
    z = latent_values(sides, f, uniform)
    many = weights > 1.0
    if bool(many.any()):
        m = sides[many] * f[many]
        ratio = math.sqrt(2.0 / math.pi) / torch.special.erfcx(-m / math.sqrt(2.0))  # phi / Phi
        variance = (1.0 - ratio * (ratio + m)).clamp(min=0.0) / weights[many]
        z[many] = sides[many] * (m + ratio + variance.sqrt() * torch.special.ndtri(uniform[many]))
    return z
