"""Layer 4: statistics of a chunk, the two bounds, lambda, the strategy, the ELBO."""

from gptf_gpytorch.variational.distributions import CollapsedVariationalDistribution
from gptf_gpytorch.variational.elbo import CollapsedELBO
from gptf_gpytorch.variational.strategy import CollapsedVariationalStrategy

__all__ = ["CollapsedELBO", "CollapsedVariationalDistribution", "CollapsedVariationalStrategy"]
