"""Data and options that do not fit together: an error where nothing can be learned, a word where it may not be meant."""

import re
import warnings
from typing import Any

import pytest
import torch
from recording import SMALL, Recorder

from gptf_gpytorch import DataError, DataWarning, TensorEntries, fit

CELLS = torch.cartesian_prod(torch.arange(6), torch.arange(5))
LABELS = (CELLS.sum(1) % 2).double()


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (LABELS, {}, "all values are 0 or 1: likelihood='probit' is made for labels"),
        (torch.ones(30), {}, "all 30 values are 1: there is nothing to learn"),
        (torch.linspace(1, 2, 10), {"balance": 1.0}, "balance takes cells that the data does not hold as values of 0"),
    ],
)
def test_what_may_not_be_meant_is_said(values: torch.Tensor, options: dict[str, Any], message: str) -> None:
    entries = TensorEntries(CELLS[: len(values)], values.double(), shape=(6, 5))
    with pytest.warns(DataWarning, match=message):
        fit(entries, max_iterations=1, **{**SMALL, **options})


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (
            1.0,
            {"likelihood": "probit"},
            "probit must see values 0 and 1. Got 1 for all 30 entries: balance samples zeros",
        ),
        (0.0, {"likelihood": "probit"}, "probit must see values 0 and 1. Got 0 for all 30 entries."),
        (0.0, {"balance": 1.0}, "balance must see values that are not 0. Got 0 for all 30 entries."),
    ],
)
def test_what_cannot_be_learned_from_is_refused(value: float, options: dict[str, Any], message: str) -> None:
    entries = TensorEntries(CELLS, torch.full((30,), value, dtype=torch.float64), shape=(6, 5))
    with pytest.raises(DataError, match=re.escape(message)):
        fit(entries, **{**SMALL, **options})


def test_what_fits_together_is_not_remarked_on() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(TensorEntries(CELLS, LABELS, shape=(6, 5)), max_iterations=1, **{**SMALL, "likelihood": "probit"})
        fit(TensorEntries(CELLS, 2.0 * LABELS, shape=(6, 5)), max_iterations=1, **SMALL)


@pytest.mark.parametrize(("count", "validation"), [(30, 0.1), (2, 0.9), (1, 0.9)])
def test_there_are_no_more_inducing_points_than_entries(count: int, validation: float) -> None:
    recorder = Recorder()
    entries = TensorEntries(CELLS[:count], torch.linspace(1, 2, count + 1)[1:].double(), shape=(6, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # one value is always the same
        result = fit(entries, method="paper", rank=1, max_iterations=1, validation=validation, tracker=recorder)
    trained = {30: 27, 2: 1, 1: 1}[count]
    said = recorder.seen[0][1]
    assert (said["entries"], said["inducing"]) == (trained, trained)
    assert result.model.variational_strategy.inducing_points.size(0) == trained
