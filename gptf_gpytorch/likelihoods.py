"""The probit likelihood, accurate in the tails."""

import math
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor


def log_Phi(z: Tensor) -> Tensor:
    r""":math:`\log \Phi(z)`, with a derivative :math:`\rho(z)` that stays finite where :math:`\Phi` underflows."""
    value: Tensor = torch.special.log_ndtr(z)
    return value


def rho(z: Tensor) -> Tensor:
    r"""The derivative of :math:`\log \Phi`: :math:`\phi / \Phi = \sqrt{2 / \pi} / \mathrm{erfcx}(-z / \sqrt 2)`."""
    scaled: Tensor = torch.special.erfcx(-z / math.sqrt(2.0))
    return math.sqrt(2.0 / math.pi) / scaled


class ProbitLikelihood(gpytorch.likelihoods.BernoulliLikelihood):  # type: ignore[misc]
    r"""Binary observations, :math:`p(y = 1 \mid f) = \Phi(f)`, labels in {0, 1}.

    The model is that of :class:`gpytorch.likelihoods.BernoulliLikelihood`. The difference is in the arithmetic:
    probabilities are carried as log odds, :math:`\log \Phi(z) - \log \Phi(-z)`, so that the log probability of a label
    that the model holds for impossible is a large negative number and not minus infinity.

    Example:
        >>> likelihood = ProbitLikelihood()
        >>> likelihood(torch.tensor([-40.0])).log_prob(torch.ones(1))
        tensor([-804.6084])

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
        signs = 2.0 * observations - 1.0
        expected: Tensor = self.quadrature(lambda f: log_Phi(signs * f), function_dist)
        return expected


def _bernoulli(z: Tensor) -> torch.distributions.Bernoulli:
    return torch.distributions.Bernoulli(logits=log_Phi(z) - log_Phi(-z))
