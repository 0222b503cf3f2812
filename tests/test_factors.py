"""Latent factors: gather, scatter, prior, and what they refuse."""

import pytest
import torch

from gptf_gpytorch import InputError, LatentFactors


def test_rows_are_gathered_and_concatenated_in_mode_order() -> None:
    factors = LatentFactors(shape=(4, 5), rank=(2, 3))
    x = factors(torch.tensor([[3, 0], [1, 4]]))
    assert x.shape == (2, 5)
    torch.testing.assert_close(x[0], torch.cat([factors[0][3], factors[1][0]]))
    torch.testing.assert_close(x[1], torch.cat([factors[0][1], factors[1][4]]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_any_integer_type_is_an_index(dtype: torch.dtype) -> None:
    factors = LatentFactors(shape=(4, 5), rank=2)
    indices = torch.tensor([[3, 0], [1, 4]], dtype=dtype)
    torch.testing.assert_close(factors(factors.check(indices)), factors(indices.long()))


def test_scatter_is_the_transpose_of_gather() -> None:
    factors = LatentFactors(shape=(4, 5, 3), rank=(1, 2, 3))
    indices = torch.stack([torch.randint(d, (50,)) for d in factors.shape], dim=-1)
    dx = torch.randn(50, 6, dtype=torch.float64)
    gradients = [torch.zeros_like(table) for table in factors.weights]
    factors.scatter_(gradients, indices, dx)
    expected = torch.autograd.grad(factors(indices), list(factors.weights), dx)
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_prior_has_no_constant() -> None:
    factors = LatentFactors(shape=(2, 2), rank=1)
    with torch.no_grad():
        for table in factors.weights:
            table.fill_(2.0)
    assert factors.log_prior().item() == -0.5 * 4 * 4.0


@pytest.mark.parametrize(
    ("shape", "rank", "message"),
    [
        ((3, 4), 0, r"rank must be integers of at least 1.*Got 0"),
        ((3, 4), (2, -1), "rank must be integers of at least 1"),
        ((3, 4), (2, 2, 2), r"one for each of the 2 modes. Got \(2, 2, 2\)"),
        ((3, 4), (1.5, 2), "rank must be integers"),
        ((), 2, "shape must be integers"),
        ((3, 0), 2, r"shape must be integers of at least 1.*Got \(3, 0\)"),
    ],
)
def test_bad_shapes_and_ranks(shape: tuple, rank: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LatentFactors(shape, rank)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (torch.tensor([[0.0, 1.0]]), "must be integers. Got torch.float32"),
        (torch.tensor([[True, False]]), "must be integers. Got torch.bool"),
        (torch.tensor([[0, 1, 2]]), r"must be \[n, 2\].*Got \[1, 3\]"),
        (torch.tensor([0, 1]), r"must be \[n, 2\].*Got \[2\]"),
        (torch.tensor([[0, 0], [1, -1]]), r"mode 1 must lie in \[0, 4\). Got -1 at row 1"),
        (torch.tensor([[0, 0], [1, 1], [3, 2]]), r"mode 0 must lie in \[0, 3\). Got 3 at row 2"),
    ],
)
def test_bad_indices(indices: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LatentFactors(shape=(3, 4), rank=2).check(indices)


def test_no_entries_are_good_indices() -> None:
    factors = LatentFactors(shape=(3, 4), rank=2)
    assert factors(factors.check(torch.zeros(0, 2, dtype=torch.long))).shape == (0, 4)
