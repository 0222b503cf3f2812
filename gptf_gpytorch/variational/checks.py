"""The border: entries and options are validated here, once, before any computation: the rule, then what came."""

import math
import operator
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.errors import InputError, PrecisionWarning
from gptf_gpytorch.likelihoods import check_labels


def positive_integer(name: str, value: Any) -> int:
    """An integer of at least 1, of Python's or NumPy's kind."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise InputError(f"{name} must be an integer of at least 1. Got {value!r}.")
    return number


def tensor(name: str, value: Any) -> Tensor:
    """A real tensor of what came, without a copy where that is possible, that needs no gradient."""
    try:
        # By way of NumPy, so that a list of floats is taken in double precision.
        found = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be a tensor or an array of numbers. Got {type(value).__name__}.") from error
    if found.is_complex():
        raise InputError(f"{name} must be real. Got {found.dtype}.")
    if found.requires_grad:
        raise InputError(f"{name} must be data: the bound has no gradient for them. Got a tensor that needs one.")
    return found


def targets(value: Any, n: int, batch_shape: torch.Size, *, binary: bool) -> Tensor:
    """Values of n entries: finite, and 0 or 1 where they are labels."""
    found = _one_an_entry("target", tensor("Targets", value), n, batch_shape)
    # A sum is finite only if all numbers are, and takes no memory; one that overflowed is looked at again.
    if not bool(found.sum().isfinite()) and not bool(found.isfinite().all()):
        place = (~found.isfinite()).nonzero()[0].tolist()
        raise InputError(f"Targets must be finite. Got {float(found[tuple(place)])} at position {place[-1]}.")
    if binary:
        check_labels(found)
    return found


def weights(value: Any, n: int, batch_shape: torch.Size) -> Tensor | None:
    """Weights of n entries: finite and not negative; None stays None."""
    if value is None:
        return None
    found = _one_an_entry("weight", tensor("Weights", value), n, batch_shape)
    bad = ~(found.isfinite() & (found >= 0))
    if bool(bad.any()):
        place = bad.nonzero()[0].tolist()
        came = float(found[tuple(place)])
        raise InputError(f"Weights must be finite and at least 0. Got {came:g} at position {place[-1]}.")
    return found


def plain_inputs(inputs: Tensor, dimension: int) -> None:
    """Real inputs `[..., n, D]` in the space of the inducing points."""
    if not inputs.is_floating_point():
        raise InputError(f"Plain inputs must be floating point. Got {inputs.dtype}.")
    if inputs.size(-1) != dimension:
        raise InputError(
            f"Inputs must have the {dimension} dimensions of the inducing points. Got {list(inputs.shape)}."
        )
    if not bool(inputs.isfinite().all()):
        raise InputError("Inputs must be finite. Got NaN or infinity.")


def jitter(value: Any) -> float:
    """A finite number that is not negative."""
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise InputError(f"jitter_val must be finite and at least 0. Got {value!r}.")
    return float(value)


def precision(dtype: torch.dtype) -> None:
    """Warn where the bound is not computed in double precision."""
    if dtype != torch.float64:
        warnings.warn(
            f"The bound is computed in {dtype}. Its terms cancel where the noise is small or inducing points "
            "are close, and single precision then has no correct digits left: use model.double().",
            PrecisionWarning,
            stacklevel=5,
        )


def _one_an_entry(name: str, found: Tensor, n: int, batch_shape: torch.Size) -> Tensor:
    if found.shape[-1:] != (n,):
        raise InputError(f"There must be one {name} for each entry. Got {n} entries and {list(found.shape)} {name}s.")
    lead = found.shape[:-1]
    if lead and (len(lead) > len(batch_shape) or lead != batch_shape[len(batch_shape) - len(lead) :]):
        raise InputError(
            f"{name.capitalize()}s must have the model's batch shape {list(batch_shape)} or none. Got {list(found.shape)}."
        )
    return found
