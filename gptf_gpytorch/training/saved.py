"""Models that can be saved and loaded: those of all methods.

Import :class:`FittedModel` from here to load: its methods are complete once this module is imported.
"""

from gptf_gpytorch.training.fitted import KIND, FittedModel
from gptf_gpytorch.training.paper_model import PaperModel, build
from gptf_gpytorch.training.sampled_model import SampledModel

__all__ = ["KIND", "FittedModel", "PaperModel", "SampledModel", "build"]
