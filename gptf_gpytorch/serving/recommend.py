"""The best entities of one mode, those of others given."""

import difflib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.errors import ApproximationWarning, InputError
from gptf_gpytorch.serving.averages import average_probability, averaged
from gptf_gpytorch.serving.lookup import count_of, ids_of, indices_of, mode_of, row_of
from gptf_gpytorch.serving.predictions import predictions_of
from gptf_gpytorch.training.saved import FittedModel
from gptf_gpytorch.variational.prediction import Marginals
from gptf_gpytorch.wording import option

By = Literal["probability", "mean"]
# Candidates whose average probability is computed.
_SHORTLIST = 256


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
    exclude: TensorEntries | Tensor | None = None,
    interval: float = 0.95,
) -> list[Recommendation]:
    r"""The entities of a mode with the highest predictions, best first; of equals, the earlier row first.

    A mode that is neither given nor ranked is open: predictions are of an entry whose entity of that mode is drawn at
    random, all that the model knows being as likely. Its mean and standard deviation are those of the mixture, the probability
    is the average probability, and the interval is that of a normal f with the mixture's moments. Where combinations or
    candidates are too many for that, an :class:`~gptf_gpytorch.errors.ApproximationWarning` says what was done instead.
    See :mod:`gptf_gpytorch.serving.averages`.

    :param given: ids of other modes.
    :param mode: whose entities are ranked.
    :param top: how many; fewer come where there are fewer.
    :param by: "probability" of a label 1, or "mean": of a real value, or of f, which does not pull towards 1/2 what is
        uncertain. By default the probability for labels, and the mean for real values.
    :param exclude: entries or their indices, such as those of training, whose cells are left out; of open modes, any entity's.
    :param interval: the probability that the interval holds.

    Example:
        >>> [best] = recommend(fitted, {"user": "u01", "page": "p02"}, mode="ad", top=1)
        >>> best.id in fitted.vocabularies[1]
        True
        >>> len(recommend(fitted, {"user": "u01"}, mode="ad", top=3))  # on whichever page
        3

    """
    target = mode_of(fitted, mode)
    top, by = count_of(top), _criterion(by, fitted.binary)
    rows = _given_rows(fitted, given, target)
    vague = open_modes(fitted, given, mode)
    candidates = torch.arange(fitted.shape[target])
    if exclude is not None:
        left = torch.ones(len(candidates), dtype=torch.bool)
        left[_seen(indices_of(fitted, exclude), rows, target, vague)] = False
        candidates = candidates[left]
    indices = torch.tensor(rows).expand(len(candidates), -1).clone()
    indices[:, target] = candidates
    if not len(candidates):
        return []
    f = averaged(fitted, indices, vague) if vague else fitted.latent(indices)
    score, probability = _score(f, by), None
    if vague and fitted.binary:  # the average of a probability takes longer: for those alone that have a chance
        first = score.argsort(descending=True, stable=True)[: max(top, _SHORTLIST)].sort().values
        if by == "probability" and len(first) < len(candidates):
            warnings.warn(
                f"of {len(candidates):,} candidates, the {len(first)} that are best by the mean and variance of f are "
                "ranked by their average probability",
                ApproximationWarning,
                stacklevel=2,
            )
        candidates, f = candidates[first], Marginals(f.mean[first], f.variance[first])
        probability = average_probability(fitted, indices[first], vague)
        score = probability if by == "probability" else f.mean
    found = predictions_of(fitted, f, interval=interval, probability=probability)
    order = score.argsort(descending=True, stable=True)[:top]
    columns = {name: column[order].tolist() for name, column in found.columns().items()}
    columns.setdefault("probability", [None] * len(order))
    ids = ids_of(fitted, target, candidates[order])
    return [
        Recommendation(item, **{name: column[place] for name, column in columns.items()})
        for place, item in enumerate(ids)
    ]


def open_modes(fitted: FittedModel, given: Mapping[str, Any], mode: str) -> list[int]:
    """The modes that are neither given nor ranked."""
    return [place for place, name in enumerate(fitted.mode_names) if name not in given and name != mode]


def _seen(seen: Tensor, rows: Sequence[int], target: int, vague: Sequence[int]) -> Tensor:
    """The candidates that some entry has together with the given entities."""
    fixed = [mode for mode in range(len(rows)) if mode != target and mode not in vague]
    here = (seen[:, fixed] == torch.tensor(rows, dtype=seen.dtype)[fixed]).all(dim=1)
    found = seen[here, target].long()
    return found[found >= 0]


def _given_rows(fitted: FittedModel, given: Mapping[str, Any], target: int) -> list[int]:
    """The row of each given mode, 0 for the others."""
    rows = [0] * len(fitted.shape)
    for name, wanted_id in given.items():
        mode = mode_of(fitted, name)
        if mode == target:
            raise InputError(f"{option('given')} must be of modes other than the one that is ranked. Got {name!r}.")
        rows[mode] = row_of(fitted, mode, wanted_id)
    return rows


def _criterion(by: By | None, binary: bool) -> By:
    if by is None:
        return "probability" if binary else "mean"
    if by not in get_args(By):
        near = difflib.get_close_matches(str(by), get_args(By), n=1)
        raise InputError(
            f"{option('by')} must be one of {', '.join(get_args(By))}. Got {by!r}.{f' Did you mean {near[0]}?' if near else ''}"
        )
    if by == "probability" and not binary:
        raise InputError(
            f"{option('by')} must be 'mean' for a model of real values, which have no probability. Got 'probability'."
        )
    return by


def _score(f: Marginals, by: By) -> Tensor:
    if by == "probability":  # its argument, which still ranks where Phi is 0 or 1
        return f.mean / (1.0 + f.variance).sqrt()
    return f.mean
