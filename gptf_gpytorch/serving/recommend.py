"""The best entities of one mode, the others given."""

import difflib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.serving.lookup import count_of, ids_of, indices_of, mode_of, row_of
from gptf_gpytorch.serving.predictions import Predictions, predict
from gptf_gpytorch.training.saved import FittedModel

By = Literal["probability", "mean"]


class Recommendation(NamedTuple):
    """A candidate and what is predicted of it."""

    id: Any
    mean: float
    std: float
    probability: float | None
    lower: float
    upper: float


def recommend(
    fitted: FittedModel,
    given: Mapping[str, Any],
    mode: str,
    top: int = 10,
    *,
    by: By | None = None,
    exclude: TensorEntries | None = None,
    interval: float = 0.95,
) -> list[Recommendation]:
    """The entities of a mode with the highest predictions, best first; of equals, the earlier row first.

    :param given: the id of every other mode.
    :param mode: whose entities are ranked.
    :param top: how many; fewer come where there are fewer.
    :param by: "probability" of a label 1, or "mean": of a real value, or of f, which does not pull towards 1/2 what is
        uncertain. By default the probability for labels, and the mean for real values.
    :param exclude: entries, such as those of training, whose cells are left out.
    :param interval: the probability that the interval holds.

    Example:
        >>> [best] = recommend(fitted, {"user": "u01", "page": "p02"}, mode="ad", top=1)
        >>> best.id in fitted.vocabularies[1]
        True

    """
    target = mode_of(fitted, mode)
    top, by = count_of(top), _criterion(by, fitted.binary)
    rows = _given_rows(fitted, given, target)
    candidates = torch.arange(fitted.shape[target])
    if exclude is not None:
        seen = indices_of(fitted, exclude)
        others = [other for other in range(len(rows)) if other != target]
        here = (seen[:, others] == torch.tensor(rows, dtype=seen.dtype)[others]).all(dim=1)
        left = torch.ones(len(candidates), dtype=torch.bool)
        seen_here = seen[here, target].long()
        left[seen_here[seen_here >= 0]] = False
        candidates = candidates[left]
    indices = torch.tensor(rows).expand(len(candidates), -1).clone()
    indices[:, target] = candidates
    found = predict(fitted, indices, interval=interval)
    order = _score(found, by).argsort(descending=True, stable=True)[:top]
    columns = {name: column[order].tolist() for name, column in found.columns().items()}
    columns.setdefault("probability", [None] * len(order))
    ids = ids_of(fitted, target, candidates[order])
    return [
        Recommendation(item, **{name: column[place] for name, column in columns.items()})
        for place, item in enumerate(ids)
    ]


def _given_rows(fitted: FittedModel, given: Mapping[str, Any], target: int) -> list[int]:
    """The row of each mode, 0 for the one that is asked for."""
    rows = [0] * len(fitted.shape)
    wanted = [name for mode, name in enumerate(fitted.mode_names) if mode != target]
    for name, wanted_id in given.items():
        mode = mode_of(fitted, name)
        if mode == target:
            raise InputError(f"given must be ids of the modes {', '.join(wanted)}. Got {name!r}, which is ranked.")
        rows[mode] = row_of(fitted, mode, wanted_id)
    missing = [name for name in wanted if name not in given]
    if missing:
        came = f"only {', '.join(given)}" if given else "none"
        raise InputError(f"given must have an id for each of the modes {', '.join(wanted)}. Got {came}.")
    return rows


def _criterion(by: By | None, binary: bool) -> By:
    if by is None:
        return "probability" if binary else "mean"
    if by not in get_args(By):
        near = difflib.get_close_matches(str(by), get_args(By), n=1)
        raise InputError(
            f"by must be one of {', '.join(get_args(By))}. Got {by!r}.{f' Did you mean {near[0]}?' if near else ''}"
        )
    if by == "probability" and not binary:
        raise InputError("by must be 'mean' for a model of real values, which have no probability. Got 'probability'.")
    return by


def _score(found: Predictions, by: By) -> Tensor:
    if by == "probability":  # its argument, which still ranks where Phi is 0 or 1
        return found.latent.mean / (1.0 + found.latent.variance).sqrt()
    return found.latent.mean
