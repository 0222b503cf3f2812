"""What a run trains on: the entries that are given, with zeros if asked for, less those that are only looked at."""

import hashlib

import torch

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.data.sampling import balance
from gptf_gpytorch.training.config import TrainConfig


def divide(entries: TensorEntries, config: TrainConfig) -> tuple[TensorEntries, TensorEntries | None]:
    """Training entries and, if asked for, a seeded share of them that is only looked at."""
    if config.balance:
        entries = balance(entries, ratio=config.balance, seed=config.seed)
    count = round(config.validation * len(entries))
    if not count:
        return entries, None
    order = torch.randperm(len(entries), generator=torch.Generator().manual_seed(config.seed))
    return entries[order[count:].sort().values], entries[order[:count].sort().values]


def digest(entries: TensorEntries) -> str:
    """What tells one set of entries from another."""
    found = hashlib.sha256(f"{entries.shape} {len(entries)} {entries.names}".encode())
    for vocabulary in entries.vocabularies:
        found.update(b"no ids" if vocabulary is None else vocabulary.digest())
    for tensor in (entries.indices, entries.values, *([] if entries.weights is None else [entries.weights])):
        found.update(tensor.contiguous().numpy().data)
    return found.hexdigest()
