"""The factor kernel: its blocks, its relevance, and GPyTorch's contract for kernels."""

import unittest

import gpytorch
import pytest
import torch
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase

from gptf_gpytorch import GPTF, FactorRBFKernel, InputError


def test_it_is_the_rbf_kernel_over_the_concatenation() -> None:
    kernel, stock = FactorRBFKernel((2, 3)).double(), gpytorch.kernels.RBFKernel(ard_num_dims=5).double()
    lengthscale = torch.tensor([[0.5, 1.0, 2.0, 0.3, 4.0]], dtype=torch.float64)
    kernel.lengthscale = stock.lengthscale = lengthscale
    x, z = torch.randn(6, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    torch.testing.assert_close(kernel(x, z).to_dense(), stock(x, z).to_dense())
    byhand = torch.exp(-0.5 * (((x[:, None] - z) / lengthscale) ** 2).sum(-1))
    torch.testing.assert_close(kernel(x, z).to_dense(), byhand)


def test_blocks_follow_the_modes() -> None:
    blocks = FactorRBFKernel((1, 2)).blocks(torch.tensor([1.0, 2.0, 3.0]))
    assert [block.tolist() for block in blocks] == [[1.0], [2.0, 3.0]]


def test_relevance_is_the_share_of_the_scaled_distance() -> None:
    kernel = FactorRBFKernel((1, 2)).double()
    kernel.lengthscale = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)
    expected = torch.tensor([1.0, 0.25 + 0.0625], dtype=torch.float64)
    torch.testing.assert_close(kernel.relevance(), expected / expected.sum())
    spread = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(kernel.relevance(spread), torch.tensor([0.0, 1.0], dtype=torch.float64))


def test_a_mode_that_does_not_vary_is_not_relevant() -> None:
    model = GPTF(shape=(5, 6), rank=2, num_inducing=3)
    with torch.no_grad():
        model.factors[1].fill_(0.3)
    relevance = model.relevance()
    torch.testing.assert_close(relevance, torch.tensor([1.0, 0.0], dtype=torch.float64), rtol=0, atol=1e-12)


def test_relevance_needs_a_kernel_that_knows_its_modes() -> None:
    model = GPTF(shape=(5, 6), rank=2, num_inducing=3, kernel=gpytorch.kernels.MaternKernel())
    with pytest.raises(InputError, match=r"needs one FactorRBFKernel.*Got MaternKernel"):
        model.relevance()


def test_relevance_of_factors_that_do_not_vary_is_zero_and_of_other_ranks_refused() -> None:
    model = GPTF(shape=(5, 6), rank=2, num_inducing=3)
    with torch.no_grad():
        for table in model.factors.weights:
            table.zero_()
    assert model.relevance().tolist() == [0.0, 0.0]
    other = GPTF(shape=(5, 6), rank=2, num_inducing=3, kernel=FactorRBFKernel((1, 3)))
    with pytest.raises(InputError, match=r"with the factors' ranks \(2, 2\)"):
        other.relevance()


@pytest.mark.parametrize("ranks", [(), (0,), (2, 0), 2, (1.5,)])
def test_bad_ranks(ranks: object) -> None:
    with pytest.raises(InputError, match="ranks must be at least 1"):
        FactorRBFKernel(ranks)


class TestContract(BaseKernelTestCase, unittest.TestCase):
    """GPyTorch's own contract. The kernel always has ARD: a kernel for these inputs has two modes of rank 1."""

    def create_kernel_no_ard(self, **kwargs: object) -> FactorRBFKernel:
        return FactorRBFKernel((1, 1), **kwargs)

    def create_kernel_ard(self, num_dims: int, **kwargs: object) -> FactorRBFKernel:
        return FactorRBFKernel((num_dims,), **kwargs)

    def test_active_dims_list(self) -> None:
        self._test_active_dims([0, 2, 4, 6])

    def test_active_dims_range(self) -> None:
        self._test_active_dims(list(range(3, 9)))

    def _test_active_dims(self, dims: list[int]) -> None:
        """As in the base class, with a kernel of as many dimensions."""
        x, ranks = self.create_data_no_batch(), (2, len(dims) - 2)
        chosen = FactorRBFKernel(ranks, active_dims=dims)(x).to_dense()
        self.assertAllClose(chosen, FactorRBFKernel(ranks)(x[:, dims]).to_dense())
