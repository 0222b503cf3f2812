"""The examples in the docstrings of the public functions run."""

import doctest
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from gptf_gpytorch.serving.explain import neighbours, relevance
from gptf_gpytorch.serving.fold_in import fold_in
from gptf_gpytorch.serving.metrics import calibration_error, evaluate
from gptf_gpytorch.serving.predictions import predict
from gptf_gpytorch.serving.reading import read_entries, read_indices
from gptf_gpytorch.serving.recommend import recommend
from gptf_gpytorch.serving.tables import predict_table, write_predictions

PUBLIC = [
    calibration_error,
    evaluate,
    fold_in,
    neighbours,
    predict,
    predict_table,
    read_entries,
    read_indices,
    recommend,
    relevance,
    write_predictions,
]


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__name__)
def test_it_runs(function, gaussian, tmp_path: Path) -> None:
    globs = {f.__name__: f for f in PUBLIC} | {"np": np, "pa": pa, "torch": torch, "folder": tmp_path}
    globs |= {"fitted": gaussian.fitted, "entries": gaussian.test}
    [test] = doctest.DocTestFinder(recurse=False).find(function, function.__name__, globs=globs)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0
