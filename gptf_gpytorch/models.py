"""The models: factors, kernel, mean and strategy put together. No data, no loops."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, TypeVar

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from gptf_gpytorch.errors import InputError
from gptf_gpytorch.factors import LatentFactors
from gptf_gpytorch.kernels import FactorRBFKernel
from gptf_gpytorch.variational.checks import positive_integer
from gptf_gpytorch.variational.stationary import KernelPrior
from gptf_gpytorch.variational.strategy import CollapsedVariationalStrategy

_Model = TypeVar("_Model", bound=gpytorch.models.ApproximateGP)


class GPTF(KernelPrior, gpytorch.models.ApproximateGP):  # type: ignore[misc]
    r"""Gaussian process tensor factorization: an entry is a GP function of the factors of its entities.

    In training mode ``model(indices)`` is what :class:`CollapsedELBO` takes; in evaluation mode it is q(f) at the
    entries, a :class:`gpytorch.distributions.MultivariateNormal`.

    Without ``draws`` factors are point estimates: the variance of a prediction is that of f, given the factors. For an entity
    without training entries they are where the prior puts them, near 0, and the variance does not say so.

    :param shape: the number of entities of each mode.
    :param rank: factors of an entity: one number, or one for each mode.
    :param num_inducing: p, the number of inducing points.
    :param kernel: any GPyTorch kernel over the D = sum of ranks concatenated factors; by default a scaled
        :class:`FactorRBFKernel`.
    :param mean: any GPyTorch mean; zero by default, as in the paper.
    :param draws: 0 makes the factors point estimates, as in the paper; with any other number they have a posterior, see
        :class:`LatentFactors`, over which :func:`marginals` averages, and ``model.eval()(indices)`` is at its mean.
    :param biases: whether every entity also has a bias with a normal posterior, which is added to f at its entries.
    :param occurrences: whether an entry's input also has how often its entities occur, see :class:`LatentFactors`.
    :param jitter_val: added to the diagonal of K_BB.
    :param dtype: the precision of everything; double by default, because single is not enough for the bound.

    Example:
        >>> model = GPTF(shape=(30, 40, 50), rank=3, num_inducing=20)
        >>> indices = torch.tensor([[0, 1, 2], [29, 39, 49]])
        >>> model.eval()(indices).variance.shape
        torch.Size([2])

    """

    def __init__(
        self,
        shape: Sequence[int],
        rank: int | Sequence[int],
        num_inducing: int,
        kernel: gpytorch.kernels.Kernel | None = None,
        mean: gpytorch.means.Mean | None = None,
        *,
        draws: int = 0,
        biases: bool = False,
        occurrences: bool = False,
        jitter_val: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        num_inducing = positive_integer("num_inducing", num_inducing)
        factors = LatentFactors(shape, rank, draws=draws, biases=biases, occurrences=occurrences, dtype=dtype)
        # Until data says better (see `initialize`): the inputs of random entries, so that B starts where the inputs
        # are.
        rows = torch.stack([torch.randint(d, (num_inducing,)) for d in factors.shape], dim=-1)
        points = factors(rows).detach()
        super().__init__(CollapsedVariationalStrategy(self, points, jitter_val=jitter_val))
        self.factors = factors
        kernel = gpytorch.kernels.ScaleKernel(FactorRBFKernel(factors.ranks)) if kernel is None else kernel
        mean = gpytorch.means.ZeroMean() if mean is None else mean
        if not isinstance(kernel, gpytorch.kernels.Kernel) or not isinstance(mean, gpytorch.means.Mean):
            raise InputError(
                f"kernel and mean must be GPyTorch's. Got {type(kernel).__name__} and {type(mean).__name__}."
            )
        self.covar_module, self.mean_module = kernel.to(dtype), mean.to(dtype)
        self._check_prior(torch.eye(2, factors.dim, dtype=dtype))

    def _check_prior(self, x: Tensor) -> None:
        """The kernel and the mean must take D inputs and give one value each: said here, not in the first step."""
        try:
            with torch.no_grad():
                shapes = (self.mean_module(x).shape, self.covar_module(x).to_dense().shape)
        except (RuntimeError, IndexError) as error:
            raise InputError(
                f"kernel and mean must take the {x.size(-1)} concatenated factors. Got {type(self.covar_module).__name__} and "
                f"{type(self.mean_module).__name__}, which say: {error}"
            ) from error
        if shapes != ((2,), (2, 2)):
            raise InputError(
                f"kernel and mean must give one value an entry, without batches. Got shapes {[list(s) for s in shapes]}."
            )

    def __call__(self, indices: Tensor, prior: bool = False, **kwargs: Any) -> MultivariateNormal:
        """q(f) at indices `[n, K]`; in training mode, the indices deferred."""
        indices = self.factors.check(indices)
        if self.training and not prior and isinstance(self.variational_strategy, CollapsedVariationalStrategy):
            return self.variational_strategy.defer(indices, self.factors)
        f = super().__call__(self.factors(indices), prior=prior, **kwargs)
        return f + self.factors.bias_distribution(indices, prior=prior) if self.factors.biases else f

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **kwargs: Any) -> gpytorch.models.ExactGP:
        """See :meth:`gpytorch.models.ApproximateGP.get_fantasy_model`; the inputs are concatenated factors."""
        if self.factors.biases:
            raise InputError("A fantasy model is of a function of factors alone. Got a model with biases.")
        return super().get_fantasy_model(inputs, targets, **kwargs)

    def relevance(self) -> Tensor:
        """How much each mode moves the function, as shares that add up to 1, `[K]`; 0 where nothing varies."""
        kernels = [k for k in self.covar_module.modules() if isinstance(k, gpytorch.kernels.Kernel)]
        known = [k for k in kernels if isinstance(k, FactorRBFKernel)]
        if len(known) != 1 or known[0].ranks != self.factors.ranks or known[0].active_dims is not None:
            names = ", ".join(type(k).__name__ for k in kernels)
            raise InputError(
                f"relevance() needs one FactorRBFKernel with the factors' ranks {self.factors.ranks}. Got {names}."
            )
        # How often an entity occurs counts with its mode.
        return known[0].relevance(self.factors.spread()).detach().view(-1, len(self.factors.entities)).sum(0)

    def to_svgp(self) -> "GPTF":
        """The fitted optimum as a stock GPyTorch SVGP with the same predictions; see :func:`to_svgp`."""
        return to_svgp(self)


def to_svgp(model: _Model) -> _Model:
    """A copy of a fitted collapsed model with GPyTorch's own strategy and the same predictions.

    The copy's q(v) is made of parameters: it can be trained further with ``VariationalELBO`` and stochastic
    gradients, with another likelihood, and used wherever GPyTorch and BoTorch expect a stock SVGP.
    (``VariationalELBO`` knows nothing of the factors' prior.)

    :param model: a model whose strategy is a :class:`CollapsedVariationalStrategy` with q(v) up to date.
    """
    if not isinstance(model.variational_strategy, CollapsedVariationalStrategy):
        raise InputError(
            f"to_svgp() takes a model with a CollapsedVariationalStrategy. Got {type(model.variational_strategy).__name__}."
        )
    model.variational_strategy.ensure_fresh()
    copy = deepcopy(model)
    collapsed: CollapsedVariationalStrategy = copy.variational_strategy
    q = collapsed._variational_distribution
    points = collapsed.inducing_points
    distribution = gpytorch.variational.CholeskyVariationalDistribution(
        q.num_inducing_points, q.variational_mean.shape[:-1]
    ).to(points)
    with torch.no_grad():
        distribution.variational_mean.copy_(q.variational_mean)
        distribution.chol_variational_covar.copy_(q.chol_variational_covar)
    copy.variational_strategy = gpytorch.variational.VariationalStrategy(
        copy,
        points.detach(),
        distribution,
        learn_inducing_locations=isinstance(points, torch.nn.Parameter),
        jitter_val=collapsed.jitter_val,
    )
    copy.variational_strategy.variational_params_initialized.fill_(1)
    return copy.train(model.training)  # type: ignore[no-any-return]
