"""Two small fitted models with string ids, trained once."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from gptf_gpytorch.data import TensorEntries, Vocabulary
from gptf_gpytorch.training.fit import fit
from gptf_gpytorch.training.saved import FittedModel

SHAPE, NAMES = (14, 9, 8), ("user", "ad", "page")


@dataclass(frozen=True)
class Problem:
    """A fitted model, what it was trained on, and entries of the same function that it has not seen.

    The last user has no entries in training: ``newcomer`` holds all of his.
    """

    fitted: FittedModel
    train: TensorEntries
    test: TensorEntries
    newcomer: TensorEntries


def vocabularies(shape: tuple[int, ...] = SHAPE) -> tuple[Vocabulary, ...]:
    return tuple(Vocabulary([f"{name[0]}{row:02d}" for row in range(d)]) for name, d in zip(NAMES, shape, strict=True))


def function(cells: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    a, b, c = (torch.randn(d, generator=generator, dtype=torch.float64) for d in (SHAPE[0] + 1, *SHAPE[1:]))
    return torch.sin(2 * a[cells[:, 0]]) * b[cells[:, 1]] + c[cells[:, 2]]


def problem(binary: bool) -> Problem:
    shape = (SHAPE[0] + 1, *SHAPE[1:])
    generator = torch.Generator().manual_seed(1)
    cells = torch.cartesian_prod(*(torch.arange(d) for d in shape))
    cells = cells[torch.randperm(len(cells), generator=generator)]
    f = function(cells)
    noise = 0.1 * torch.randn(len(f), generator=generator, dtype=torch.float64)
    values = (f > 0).double() if binary else 50.0 + 7.0 * (f + noise)
    new = cells[:, 0] == SHAPE[0]
    old = TensorEntries(cells[~new], values[~new], SHAPE, NAMES, vocabularies())
    newcomer = TensorEntries(cells[new], values[new], shape, NAMES, vocabularies(shape))
    likelihood = "probit" if binary else "gaussian"
    result = fit(
        old[:700], method="paper", likelihood=likelihood, validation=0.0, rank=2, inducing=20, max_iterations=25
    )
    return Problem(result.fitted, old[:700], old[700:], newcomer)


@pytest.fixture(scope="session")
def gaussian() -> Problem:
    return problem(False)


@pytest.fixture(scope="session")
def probit() -> Problem:
    return problem(True)


@pytest.fixture(params=["gaussian", "probit"])
def either(request: pytest.FixtureRequest) -> Problem:
    found: Problem = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def numbered(gaussian: Problem) -> FittedModel:
    """The model with integer ids of users, no ids of ads, and string ids of pages."""
    users = Vocabulary([100 + row for row in range(SHAPE[0])])
    return replace(gaussian.fitted, vocabularies=(users, None, gaussian.fitted.vocabularies[2]))
