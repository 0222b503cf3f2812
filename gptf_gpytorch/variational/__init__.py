"""Layer 4: statistics of a chunk, the two bounds, lambda, the strategy, the ELBO."""

from gptf_gpytorch.variational.elbo import CollapsedELBO
from gptf_gpytorch.variational.strategy import CollapsedVariationalDistribution, CollapsedVariationalStrategy

__all__ = ["CollapsedELBO", "CollapsedVariationalDistribution", "CollapsedVariationalStrategy"]
