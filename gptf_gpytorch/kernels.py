"""The ARD kernel over concatenated factors, which knows where each mode's block lies."""

import operator
from collections.abc import Sequence
from typing import Any

import gpytorch
import torch
from torch import Tensor

from gptf_gpytorch.errors import InputError


class FactorRBFKernel(gpytorch.kernels.RBFKernel):  # type: ignore[misc]
    r"""The RBF kernel with one lengthscale for each factor of each mode.

    .. math:: k(x, x') = \exp\Bigl(-\tfrac12 \sum_{k=1}^K \sum_{d=1}^{r_k}
        \bigl(u^{(k)}_d - u'^{(k)}_d\bigr)^2 / \ell_{kd}^2\Bigr)

    :param ranks: the length :math:`r_k` of each mode's block.

    Example:
        >>> kernel = FactorRBFKernel(ranks=(2, 3))
        >>> kernel.lengthscale.shape, kernel.relevance()
        (torch.Size([1, 5]), tensor([0.4000, 0.6000], grad_fn=<DivBackward0>))

    """

    def __init__(self, ranks: Sequence[int], **kwargs: Any) -> None:
        try:
            self_ranks = tuple(operator.index(rank) for rank in ranks)
        except TypeError:
            self_ranks = ()
        if not self_ranks or min(self_ranks) < 1:
            raise InputError(f"ranks must be at least 1, one for each mode. Got {ranks!r}.")
        super().__init__(ard_num_dims=sum(self_ranks), **kwargs)
        self.ranks = self_ranks

    def blocks(self, values: Tensor) -> tuple[Tensor, ...]:
        """Split the last dimension of a `[..., D]` tensor into the K modes' blocks."""
        parts: tuple[Tensor, ...] = values.split(self.ranks, dim=-1)
        return parts

    def relevance(self, spread: Tensor | None = None) -> Tensor:
        r"""How much each mode moves the function, as shares that add up to 1, `[..., K]`.

        A mode's share is proportional to :math:`\sum_d s_{kd}^2 / \ell_{kd}^2`: the mean squared length-scaled distance
        between entities whose factors have standard deviation :math:`s_{kd}`.

        :param spread: the standard deviations `[..., D]`; 1 where not given, as under the prior.
        """
        inverse = self.lengthscale.squeeze(-2).reciprocal()  # [..., D]
        scaled = (inverse if spread is None else inverse * spread).square()
        shares = torch.stack([block.sum(-1) for block in self.blocks(scaled)], dim=-1)
        total = shares.sum(-1, keepdim=True)
        return shares / total.clamp_min(torch.finfo(total.dtype).tiny)
