"""Nonlinear tensor factorization with Gaussian processes, as a GPyTorch plugin.

A tensor entry at (i_1, ..., i_K) is a Gaussian process function of the concatenated latent factors
of its K entities. Reading order is import order; see ``docs/design.md`` for the layers.
"""

from gptf_gpytorch.version import __version__

__all__ = ["__version__"]
