"""The small tensor, as fixtures."""

import pytest
from small_tensor import make_entries

from gptf_gpytorch.data import TensorEntries


@pytest.fixture(scope="session")
def entries() -> TensorEntries:
    return make_entries()


@pytest.fixture(scope="session")
def labels() -> TensorEntries:
    return make_entries(binary=True)
