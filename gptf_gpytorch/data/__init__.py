"""Layer 2: from the file a user has to entries that can be trusted."""

from gptf_gpytorch.data.duplicates import resolve
from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.data.readers import read
from gptf_gpytorch.data.vocabulary import Vocabulary

__all__ = ["TensorEntries", "Vocabulary", "read", "resolve"]
