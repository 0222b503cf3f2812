"""Layer 2: from the file a user has to entries that can be trusted."""

from gptf_gpytorch.data.duplicates import resolve
from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.data.readers import read
from gptf_gpytorch.data.readers.shards import read_shard
from gptf_gpytorch.data.sampling import balance, sample_zeros
from gptf_gpytorch.data.splits import Split, folds, holdout, split_by_time
from gptf_gpytorch.data.vocabulary import Vocabulary

__all__ = [
    "Split",
    "TensorEntries",
    "Vocabulary",
    "balance",
    "folds",
    "holdout",
    "read",
    "read_shard",
    "resolve",
    "sample_zeros",
    "split_by_time",
]
