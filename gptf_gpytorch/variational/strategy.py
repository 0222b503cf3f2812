"""The collapsed variational strategy: inducing points, the optimal q(v) as buffers with a stamp, prediction."""

import warnings
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from gptf_gpytorch.errors import (
    CholeskyError,
    InputError,
    JitterWarning,
    StalePosteriorError,
)
from gptf_gpytorch.factors import LatentFactors
from gptf_gpytorch.variational import checks
from gptf_gpytorch.variational.bounds import WhitenedPosterior
from gptf_gpytorch.variational.distributions import CollapsedVariationalDistribution, DeferredMultivariateNormal
from gptf_gpytorch.variational.stationary import recognise

# K_BB is tried with this many jitters, each ten times the one before.
_JITTERS = 4
# Of a checksum: the numbers that are taken at a time, and what the weights of two neighbours differ by.
_PLACES, _WEIGHT = 2**18, 2_654_435_761


def _default_jitter(dtype: torch.dtype) -> float:
    return float(gpytorch.settings.variational_cholesky_jitter.value(dtype=dtype))


def _checksum(tensors: Iterable[Tensor]) -> int:
    """A number, never 0, that changes with any value or with the order of the values.

    It is taken of the values rounded to single precision, so that a change of dtype does not change it.
    """
    total = 0
    for tensor in tensors:
        if tensor.is_floating_point():
            values, found = tensor.detach().reshape(-1), 0
            for start in range(0, values.numel(), _PLACES):
                bits = values[start : start + _PLACES].to(torch.float32).view(torch.int32).to(torch.int64)
                found += int((bits * _weights(bits.device)[: bits.numel()]).sum())
                if start:  # an even distance from the first places, so that their weights are further by this, too
                    found += start * _WEIGHT * int(bits.sum())
            total = (total * 1_000_003 + found) % (1 << 62)
    return total + 1


@cache
def _weights(device: torch.device) -> Tensor:
    """An odd number for each of the first places."""
    return torch.arange(1, _PLACES + 1, device=device, dtype=torch.int64) * _WEIGHT | 1


class CollapsedVariationalStrategy(gpytorch.variational.VariationalStrategy):  # type: ignore[misc]
    r"""A variational strategy whose q(v) is computed, not learned: the optimum that the tight bounds of the paper imply.

    It takes the place of :class:`gpytorch.variational.VariationalStrategy` in an ``ApproximateGP``, with plain real
    inputs or with latent factors (:class:`~gptf_gpytorch.GPTF`), and is trained with
    :class:`~gptf_gpytorch.CollapsedELBO`.

    In training mode a call defers its inputs. Each training evaluation of the bound writes q(v) and a stamp, a checksum
    of the parameters that q(v) belongs to. In evaluation mode a call compares the stamp: if the parameters have
    moved, as after an optimiser's step, one process that still holds the data refreshes q(v) by itself, and otherwise
    the call fails with :class:`~gptf_gpytorch.StalePosteriorError`. A strategy that was never trained predicts the
    prior.

    :param model: the model whose ``forward`` gives the prior at real inputs.
    :param inducing_points: B `[..., p, D]`, in the space of the inputs.
    :param variational_distribution: a :class:`CollapsedVariationalDistribution`; made if not given.
    :param learn_inducing_locations: whether B is a parameter.
    :param jitter_val: added to the diagonal of K_BB; by default GPyTorch's for the precision of B.

    Example:
        >>> class Classifier(gpytorch.models.ApproximateGP):
        ...     def __init__(self, inducing_points):
        ...         super().__init__(CollapsedVariationalStrategy(self, inducing_points))
        ...         self.mean_module = gpytorch.means.ConstantMean()
        ...         self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        ...     def forward(self, x):
        ...         return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
        >>> model = Classifier(torch.linspace(0.0, 1.0, 5).unsqueeze(-1)).double()
        >>> mll = CollapsedELBO(ProbitLikelihood(), model, num_data=50)

    """

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        inducing_points: Tensor,
        variational_distribution: CollapsedVariationalDistribution | None = None,
        learn_inducing_locations: bool = True,
        jitter_val: float | None = None,
    ) -> None:
        if inducing_points.dim() == 1:
            inducing_points = inducing_points.unsqueeze(-1)
        if variational_distribution is None:
            variational_distribution = CollapsedVariationalDistribution(
                inducing_points.size(-2), batch_shape=inducing_points.shape[:-2]
            ).to(inducing_points)
        if not isinstance(variational_distribution, CollapsedVariationalDistribution):
            raise InputError(
                "variational_distribution must be a CollapsedVariationalDistribution, or left out. "
                f"Got {type(variational_distribution).__name__}."
            )
        super().__init__(model, inducing_points, variational_distribution, learn_inducing_locations)
        # Part of the state: predictions need the jitter that q(v) was computed with.
        self._default_jitter = jitter_val is None
        jitter_val = _default_jitter(inducing_points.dtype) if jitter_val is None else checks.jitter(jitter_val)
        self.register_buffer("jitter", torch.tensor(jitter_val, dtype=torch.float64))
        self.register_buffer("stamp", torch.zeros((), dtype=torch.int64))
        #: The path on which the last evaluation mapped its entries.
        self.path = "not evaluated yet"
        self._refresh: Callable[[], None] | None = None
        self._likelihood: tuple[gpytorch.likelihoods.Likelihood, int] | None = None

    def extra_repr(self) -> str:
        """What a printed model says of its strategy."""
        return f"inducing_points={tuple(self.inducing_points.shape)}, path={self.path!r}"

    def __getstate__(self) -> dict[str, Any]:
        # GPyTorch's memo holds graphs, which cannot be copied.
        return {**self.__dict__, "_refresh": None, "_likelihood": None, "_memoize_cache": {}}

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # GPyTorch's memo would keep the old precision and device.
        self._clear_cache()
        before = self.inducing_points.dtype
        found = super()._apply(fn, recurse)
        # As GPyTorch's own, the default jitter follows the precision, until a q(v) depends on it.
        if self._default_jitter and self.inducing_points.dtype != before and not self.stamp.is_meta and not self.stamp:
            self.jitter.fill_(_default_jitter(self.inducing_points.dtype))
        return found

    # Jitter and the factor of K_BB

    @property
    def jitter_val(self) -> float:
        """What is added to the diagonal of K_BB."""
        return float(self.jitter)

    @jitter_val.setter
    def jitter_val(self, value: float) -> None:
        self._default_jitter = False
        self.jitter.fill_(checks.jitter(value))

    def factor(self, *, may_raise_jitter: bool) -> tuple[Tensor, Tensor]:
        """K_BB `[..., p, p]` with its graph, and L without one, L L' = K_BB + jitter.

        If there is none, the jitter is multiplied by ten, a few times. What worked is kept, because q(v) and
        predictions must use the same one; an evaluation that may not write q(v) may not raise the jitter either.
        """
        K_BB = self.model.forward(self.inducing_points).lazy_covariance_matrix.to_dense()
        prior = recognise(self.model, self.inducing_points)
        if prior is not None:
            # As a matrix, a point's distance to itself is the root of a rounding error; Matern 1/2 would show it.
            K_BB = K_BB.diagonal_scatter(prior.outputscale.expand(len(K_BB)))
        eye = torch.eye(K_BB.size(-1), dtype=K_BB.dtype, device=K_BB.device)
        asked = jitter = self.jitter_val
        for _ in range(_JITTERS if may_raise_jitter else 1):
            L: Tensor
            L, failed = torch.linalg.cholesky_ex(K_BB.detach() + jitter * eye)
            if not failed.any() and bool(L.isfinite().all()):
                if jitter != asked:
                    self.jitter_val = jitter
                    warnings.warn(f"K_BB needed jitter {jitter:g} instead of {asked:g}.", JitterWarning, stacklevel=2)
                return K_BB, L
            reached, jitter = jitter, max(10.0 * jitter, 1e-10)
        if not bool(K_BB.isfinite().all()):
            raise CholeskyError(
                "The kernel at the inducing points must be finite. It has NaN or infinity: a parameter has left its "
                "range; take a smaller step, or start again from the last good state."
            )
        raise CholeskyError(
            f"K_BB must be positive definite. It is not, with jitter up to {reached:g}. "
            "Try fewer inducing points, a larger variational_strategy.jitter_val, a smaller outputscale, or float64."
        )

    @property
    def q(self) -> tuple[Tensor, Tensor]:
        """What was written last, whitened: the mean `[..., p]` and the Cholesky factor of the covariance."""
        q = self._variational_distribution
        return q.variational_mean, q.chol_variational_covar

    @property
    def lam(self) -> Tensor:
        r"""The paper's lambda `[..., p]` where q(v) is that of the probit bound: :math:`L^{-T} \eta`, eta being q's
        mean.

        It is stored as eta, the variational mean, which is well conditioned where lambda is not.
        """
        with torch.no_grad():
            _, L = self.factor(may_raise_jitter=False)
            eta, _ = self.q
            lam: Tensor = torch.linalg.solve_triangular(L.mT, eta.unsqueeze(-1), upper=True).squeeze(-1)
            return lam

    # The stamp

    def checksum(self) -> int:
        """A number that changes with any of the numbers that predictions depend on."""
        skipped = {
            id(tensor)
            for module in self.model.modules()
            if isinstance(module, gpytorch.likelihoods.Likelihood)
            for tensor in (*module.parameters(), *module.buffers())
        }
        named = dict((*self.model.named_parameters(), *self.model.named_buffers()))
        return _checksum(named[name] for name in sorted(named) if id(named[name]) not in skipped)

    def write(
        self,
        posterior: WhitenedPosterior,
        likelihood: gpytorch.likelihoods.Likelihood,
        refresh: Callable[[], None] | None,
    ) -> None:
        """Take over q(v) at the present parameters. Called by ``CollapsedELBO`` alone.

        :param likelihood: whose parameters q(v) depends on, too; they are watched as long as this object lives.
        :param refresh: how a later evaluation may bring q(v) up to date by itself, or None.
        """
        self._variational_distribution.write(posterior)
        self.variational_params_initialized.fill_(1)
        self._clear_cache()
        self._refresh = refresh
        self._likelihood = (likelihood, _checksum(likelihood.parameters()))
        self.stamp.fill_(self.checksum())

    @property
    def is_stale(self) -> bool:
        """Whether the parameters, of the model or of the likelihood, have changed since q(v) was written."""
        if not self.stamp:
            return False
        if self._likelihood is not None and _checksum(self._likelihood[0].parameters()) != self._likelihood[1]:
            return True
        return int(self.stamp) != self.checksum()

    def ensure_fresh(self) -> None:
        """Refresh q(v) if this process can, or fail, if the parameters have changed since it was written."""
        if not self.is_stale:
            return
        if self._refresh is not None:
            self._refresh()
        if self.is_stale:
            raise StalePosteriorError(
                "q(v) must belong to the present parameters, and they have changed since it was computed. "
                "Call mll.refresh() on all workers after the last step, and before saving or copying the model."
            )

    # GPyTorch's interface

    def defer(self, inputs: Tensor, factors: LatentFactors | None = None) -> DeferredMultivariateNormal:
        """The inputs as what ``CollapsedELBO`` takes: x `[..., n, D]`, or indices `[n, K]` of rows of the factors."""
        shapes = [self.inducing_points.shape[:-2], self._variational_distribution.batch_shape]
        if factors is None:
            shapes.append(inputs.shape[:-2])
        return DeferredMultivariateNormal(inputs, factors, self, torch.broadcast_shapes(*shapes))

    def __call__(self, x: Tensor, prior: bool = False, diag: bool = True, **kwargs: Any) -> MultivariateNormal:
        """q(f) at x; in training mode, x deferred."""
        if not prior:
            if self.training:
                return self.defer(x)
            self.ensure_fresh()
        return super().__call__(x, prior=prior, diag=diag, **kwargs)

    def get_fantasy_model(self, *args: Any, **kwargs: Any) -> gpytorch.models.ExactGP:
        """Condition on new observations; see :meth:`gpytorch.variational.VariationalStrategy.get_fantasy_model`."""
        self.ensure_fresh()
        return super().get_fantasy_model(*args, **kwargs)
