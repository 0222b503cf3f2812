"""The probit likelihood, accurate in the tails."""

import math
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from gptf_gpytorch.errors import InputError


def log_Phi(z: Tensor) -> Tensor:
    r""":math:`\log \Phi(z)`, accurate in both tails, with a derivative :math:`\rho(z)` that is accurate there, too."""
    value: Tensor = _LogPhi.apply(z)  # type: ignore[no-untyped-call]
    return value


class _LogPhi(torch.autograd.Function):
    """`torch.special.log_ndtr` where it is accurate, and a derivative of our own.

    Its autograd has a relative error of 1e-4 at z = -1e6, and far above 0 its value inherits the error of z * z / 2,
    which the exponential magnifies. Here z is split so that the square of the leading part is exact.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        above = z.clamp(1.0, 40.0)  # beyond 40, log Phi underflows
        lead = above.to(torch.float32).to(z.dtype)
        density = torch.exp(-0.5 * lead * lead) * torch.exp(-0.5 * (above - lead) * (above + lead))
        upper = torch.log1p(-0.5 * density * torch.special.erfcx(above / math.sqrt(2.0)))
        return torch.where(z > 1.0, upper, torch.special.log_ndtr(z))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return gradient * rho(z)


def rho(z: Tensor) -> Tensor:
    r"""The derivative of :math:`\log \Phi`: :math:`\phi / \Phi = \sqrt{2 / \pi} / \mathrm{erfcx}(-z / \sqrt 2)`."""
    scaled: Tensor = torch.special.erfcx(-z / math.sqrt(2.0))
    return math.sqrt(2.0 / math.pi) / scaled


def check_labels(found: Tensor) -> None:
    """Labels of the probit likelihood: 0 or 1."""
    odd = (found != 0) & (found != 1)
    if bool(odd.any()):
        place = odd.nonzero()[0].tolist()
        came = float(found[tuple(place)])
        raise InputError(
            f"Targets of the probit likelihood must be 0 or 1. Got {came:g} at position {place[-1] if place else 0}."
        )


def log_predictive(
    likelihood: gpytorch.likelihoods.GaussianLikelihood | gpytorch.likelihoods.BernoulliLikelihood,
    mean: Tensor,
    variance: Tensor,
    y: Tensor,
) -> Tensor:
    """The log predictive density of values `[n]`, given the moments of f; accurate in the tails."""
    if isinstance(likelihood, gpytorch.likelihoods.GaussianLikelihood):
        found: Tensor = torch.distributions.Normal(mean, (variance + likelihood.noise.squeeze()).sqrt()).log_prob(y)
        return found
    return log_Phi((2.0 * y - 1.0) * mean / (1.0 + variance).sqrt())


class ProbitLikelihood(gpytorch.likelihoods.BernoulliLikelihood):  # type: ignore[misc]
    r"""Binary observations, :math:`p(y = 1 \mid f) = \Phi(f)`, labels in {0, 1}.

    The model is that of :class:`gpytorch.likelihoods.BernoulliLikelihood`. The difference is in the arithmetic:
    probabilities are carried as log odds, :math:`\log \Phi(z) - \log \Phi(-z)`, so that the log probability of a label
    that the model holds for impossible is a large negative number and not minus infinity.

    Example:
        >>> likelihood = ProbitLikelihood()
        >>> likelihood(torch.tensor([-40.0], dtype=torch.float64)).log_prob(torch.ones(1, dtype=torch.float64))
        tensor([-804.6084], dtype=torch.float64)

    """

    def forward(self, function_samples: Tensor, *args: Any, **kwargs: Any) -> torch.distributions.Bernoulli:
        """The distribution of y given f."""
        return _bernoulli(function_samples)

    def marginal(self, function_dist: MultivariateNormal, *args: Any, **kwargs: Any) -> torch.distributions.Bernoulli:
        r"""The distribution of y under q(f): :math:`P(y = 1) = \Phi(\mathrm E f / \sqrt{1 + \mathrm{Var} f})`."""
        return _bernoulli(function_dist.mean / (1.0 + function_dist.variance).sqrt())

    def expected_log_prob(
        self, observations: Tensor, function_dist: MultivariateNormal, *params: Any, **kwargs: Any
    ) -> Tensor:
        r""":math:`\mathrm E_{q(f)} \log \Phi((2 y - 1) f)`, by Gauss-Hermite quadrature."""
        check_labels(observations)
        signs = 2.0 * observations - 1.0
        expected: Tensor = self.quadrature(lambda f: log_Phi(signs * f), function_dist)
        return expected


def _bernoulli(z: Tensor) -> torch.distributions.Bernoulli:
    return torch.distributions.Bernoulli(logits=log_Phi(z) - log_Phi(-z))
