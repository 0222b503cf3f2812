"""The latent factors: a table of rows for each mode of the tensor, with a standard normal prior."""

import operator
from collections.abc import Sequence
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.distributed.threads import one_core_each
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.wording import option


def _positive(name: str, values: Any, count: int | None = None) -> tuple[int, ...]:
    """Integers of at least 1, of Python's or NumPy's kind, or an error that states the rule.

    :param count: how often a single number is repeated.
    """
    try:
        found = (operator.index(values),) * count if count is not None and not np.iterable(values) else tuple(values)
        numbers = tuple(operator.index(value) for value in found)
    except TypeError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise InputError(f"{name} must be integers of at least 1, one for each mode. Got {values!r}.")
    return numbers


class LatentFactors(gpytorch.Module):  # type: ignore[misc]
    r"""The factors :math:`U^{(k)}` `[d_k, r_k]` of K modes, and the inputs made of them.

    The input of the entry at :math:`(i_1, \ldots, i_K)` is the concatenation of its K rows,
    :math:`x = [u^{(1)}_{i_1}, \ldots, u^{(K)}_{i_K}]`, a vector of :math:`D = \sum_k r_k` numbers.

    :param shape: the number of entities of each mode, :math:`d_1, \ldots, d_K`.
    :param rank: the number of factors of an entity: one for all modes, or one for each.
    :param scale: the standard deviation of the random start. Small is better than the prior's 1: see ``initialize``.

    Example:
        >>> factors = LatentFactors(shape=(4, 5, 6), rank=2)
        >>> factors(torch.tensor([[0, 0, 0], [3, 4, 5]])).shape
        torch.Size([2, 6])

    """

    def __init__(
        self,
        shape: Sequence[int],
        rank: int | Sequence[int],
        *,
        scale: float = 0.1,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.shape = _positive("shape", shape)
        self.ranks = _positive("rank", rank, count=len(self.shape))
        if len(self.ranks) != len(self.shape):
            raise InputError(
                f"{option('rank')} must be one number, or one for each of the {len(self.shape)} modes. Got {self.ranks}."
            )
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(scale * torch.randn(d, r, dtype=dtype))
            for d, r in zip(self.shape, self.ranks, strict=True)
        )

    def __getitem__(self, mode: int) -> Tensor:
        """The factors of one mode `[d_k, r_k]`."""
        table: Tensor = self.weights[mode]
        return table

    def __len__(self) -> int:
        return len(self.shape)

    @property
    def dim(self) -> int:
        """D, the length of a concatenated input."""
        return sum(self.ranks)

    def forward(self, indices: Tensor) -> Tensor:
        """Gather and concatenate: indices `[n, K]` -> x `[n, D]`."""
        return torch.cat([table[indices[:, mode].long()] for mode, table in enumerate(self.weights)], dim=-1)

    def scatter_(self, gradients: Sequence[Tensor | None], indices: Tensor, dx: Tensor) -> None:
        """Add the gradient of x `[n, D]` to gradients shaped like the tables, or None: the transpose of ``forward``."""
        for mode, (gradient, part) in enumerate(zip(gradients, dx.split(self.ranks, dim=-1), strict=True)):
            if gradient is not None:
                gradient.index_add_(0, indices[:, mode].long(), part)

    def log_prior(self) -> Tensor:
        r"""The log of the standard normal prior without its constant, :math:`-\frac12 \sum_k \|U^{(k)}\|_F^2`."""
        return -0.5 * torch.stack([table.square().sum() for table in self.weights]).sum()

    def check(self, indices: Any) -> Tensor:
        """Indices that can be gathered, or an error that states the rule and what came."""
        try:
            indices = torch.as_tensor(indices)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"indices must be a tensor or an array of integers. Got {type(indices).__name__}."
            ) from error
        if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
            raise InputError(f"indices must be integers. Got {indices.dtype}.")
        if indices.dtype in (torch.uint16, torch.uint32, torch.uint64):
            indices = indices.long()  # torch has few operations for these
        if indices.dim() != 2 or indices.size(-1) != len(self.shape):
            raise InputError(f"indices must be [n, {len(self.shape)}], a column a mode. Got {list(indices.shape)}.")
        if len(indices):
            with one_core_each():
                lowest, highest = (bound.tolist() for bound in indices.aminmax(dim=0))
            for mode, (low, high) in enumerate(zip(lowest, highest, strict=True)):
                if low < 0 or high >= self.shape[mode]:
                    bad = (indices[:, mode] < 0) | (indices[:, mode] >= self.shape[mode])
                    row = int(bad.nonzero()[0])
                    raise InputError(
                        f"indices of mode {mode} must lie in [0, {self.shape[mode]}). "
                        f"Got {int(indices[row, mode])} at row {row}."
                    )
        checked: Tensor = indices
        return checked
