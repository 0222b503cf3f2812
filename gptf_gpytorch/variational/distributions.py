"""q(v) as buffers, and what a model returns in training mode."""

from typing import Any, NoReturn

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from gptf_gpytorch.errors import DeferredPosteriorError
from gptf_gpytorch.factors import LatentFactors
from gptf_gpytorch.variational.bounds import WhitenedPosterior


class CollapsedVariationalDistribution(gpytorch.variational.CholeskyVariationalDistribution):  # type: ignore[misc]
    """A Gaussian q(u) whose mean and Cholesky factor are computed, not learned: buffers instead of parameters.

    What GPyTorch does with a Cholesky variational distribution works: prediction, KL, and fantasies (of plain inputs,
    with the likelihood attached as ``model.likelihood``).
    """

    def __init__(self, num_inducing_points: int, batch_shape: torch.Size = torch.Size([]), **kwargs: Any) -> None:  # noqa: B008
        super().__init__(num_inducing_points, batch_shape=batch_shape, mean_init_std=0.0, **kwargs)
        for name in ("variational_mean", "chol_variational_covar"):
            value = getattr(self, name).detach()
            delattr(self, name)
            self.register_buffer(name, value)

    @property
    def device(self) -> torch.device:
        """Where the buffers are."""
        return self.variational_mean.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the buffers."""
        return self.variational_mean.dtype  # type: ignore[no-any-return]

    def initialize_variational_distribution(self, prior_dist: MultivariateNormal) -> None:
        """Start at the prior, without the random noise of the learned kind: workers must agree."""
        self.variational_mean = prior_dist.mean.detach().clone()
        self.chol_variational_covar = prior_dist.lazy_covariance_matrix.cholesky().to_dense().detach().clone()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # A batch of data sets gives a batch of q(v), which the constructor cannot know.
        for name in ("variational_mean", "chol_variational_covar"):
            if prefix + name in state_dict:
                setattr(self, name, getattr(self, name).new_empty(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def write(self, posterior: WhitenedPosterior) -> None:
        """Take over an optimal q(v), in the batch shape that it has."""
        self.variational_mean = posterior.mean.detach().clone()
        self.chol_variational_covar = posterior.root.detach().clone()


class DeferredMultivariateNormal(MultivariateNormal):  # type: ignore[misc]
    """What a collapsed model returns in training mode: its inputs, not yet mapped.

    The moments of q(f) at all N training entries are never needed to train, and would take O(N) memory in the factors
    alone; :class:`~gptf_gpytorch.CollapsedELBO` maps the inputs chunk by chunk instead. It has the shapes of the
    distribution that it stands for, and any use of its moments is an error.
    """

    def __init__(
        self,
        inputs: Tensor,
        factors: LatentFactors | None,
        strategy: gpytorch.variational.VariationalStrategy,
        batch_shape: torch.Size,
    ) -> None:
        self.inputs, self.factors, self.strategy = inputs, factors, strategy
        self._batch_shape, self._event_shape = batch_shape, torch.Size([inputs.size(-2)])
        self._validate_args = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)})"

    def _refuse(self) -> NoReturn:
        raise DeferredPosteriorError(
            "In training mode the model defers its inputs: pass its output to CollapsedELBO. "
            "For the moments of q(f), call model.eval() first."
        )

    @property
    def loc(self) -> NoReturn:
        """Refused, as every moment is."""
        self._refuse()

    mean = variance = stddev = covariance_matrix = lazy_covariance_matrix = loc
    scale_tril = precision_matrix = _covar = _unbroadcasted_scale_tril = loc
