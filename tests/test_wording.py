"""Options in the words of whoever reads the message."""

import doctest

import pytest

from gptf_gpytorch import InputError, TrainConfig, wording
from gptf_gpytorch.wording import as_flag, option, spelled


def test_the_example_runs() -> None:
    assert doctest.testmod(wording).failed == 0
    assert doctest.testmod(wording).attempted == 2


def test_an_error_inside_leaves_the_spelling_as_it_was() -> None:
    with pytest.raises(InputError, match=r"^--max-iterations must be"), spelled(as_flag):
        TrainConfig(max_iterations=-1)
    assert option("max_iterations") == "max_iterations"
    with pytest.raises(InputError, match=r"^max_iterations must be"):
        TrainConfig(max_iterations=-1)
