"""Relevance and neighbours, against loops over the factors."""

import math

import gpytorch
import pytest
import torch

from gptf_gpytorch import DataError, InputError
from gptf_gpytorch.data import TensorEntries
from gptf_gpytorch.serving.explain import neighbours, relevance
from gptf_gpytorch.training.fit import fit
from gptf_gpytorch.training.saved import FittedModel


def lengthscales(fitted: FittedModel) -> list[float]:
    found: list[float] = fitted.model.covar_module.base_kernel.lengthscale.detach().flatten().tolist()
    return found


@pytest.fixture(scope="module")
def matern() -> FittedModel:
    cells = torch.cartesian_prod(torch.arange(6), torch.arange(5))
    entries = TensorEntries(cells, torch.sin(cells.sum(1).double()), (6, 5))
    return fit(entries, method="paper", rank=(2, 1), inducing=8, max_iterations=5, kernel="matern32").fitted


def test_relevance_is_the_models(either) -> None:
    found = relevance(either.fitted)
    assert list(found) == ["user", "ad", "page"]
    assert list(found.values()) == pytest.approx(either.fitted.model.relevance().tolist())


def test_relevance_of_matern_kernels(matern) -> None:
    shares, place = [], 0
    for table in matern.model.factors.weights:
        share = 0.0
        for column in table.detach().T:
            values = column.tolist()
            mean = sum(values) / len(values)
            share += sum((v - mean) ** 2 for v in values) / len(values) / lengthscales(matern)[place] ** 2
            place += 1
        shares.append(share)
    assert list(relevance(matern).values()) == pytest.approx([share / sum(shares) for share in shares])


@pytest.mark.parametrize("mode", ["user", "page"])
def test_neighbours(either, mode: str) -> None:
    fitted = either.fitted
    place = fitted.mode_names.index(mode)
    table = fitted.model.factors[place].tolist()
    ell = lengthscales(fitted)[2 * place : 2 * place + 2]
    expected = sorted(
        (math.sqrt(sum(((a - b) / e) ** 2 for a, b, e in zip(row, table[4], ell, strict=True))), number)
        for number, row in enumerate(table)
        if number != 4
    )
    found = neighbours(fitted, mode, f"{mode[0]}04", top=5)
    assert [n.id for n in found] == [f"{mode[0]}{number:02d}" for _, number in expected[:5]]
    assert [n.distance for n in found] == pytest.approx([distance for distance, _ in expected[:5]])
    assert len(neighbours(fitted, mode, f"{mode[0]}04", top=1000)) == len(table) - 1


def test_neighbours_where_there_are_no_ids(matern) -> None:
    found = neighbours(matern, "mode_1", 3)
    assert sorted(n.id for n in found) == [0, 1, 2, 4]


def test_bad_input(gaussian, matern) -> None:
    with pytest.raises(InputError, match="Did you mean 'page'"):
        neighbours(gaussian.fitted, "pages", "p01")
    with pytest.raises(DataError, match="Got 'p99'"):
        neighbours(gaussian.fitted, "page", "p99")
    with pytest.raises(InputError, match="top must be"):
        neighbours(gaussian.fitted, "page", "p01", top=0)


def test_a_kernel_without_lengthscales_of_its_own(matern) -> None:
    kernel = matern.model.covar_module
    matern.model.covar_module = gpytorch.kernels.LinearKernel()
    try:
        with pytest.raises(InputError, match=r"must be RBF or Matern, with lengthscales. Got LinearKernel"):
            relevance(matern)
    finally:
        matern.model.covar_module = kernel
