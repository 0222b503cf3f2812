"""What a run trains on: the entries that are given, with zeros if asked for, less those that are only looked at."""

import hashlib
from collections.abc import Iterator

import torch

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.data.sampling import balance
from gptf_gpytorch.errors import DataError
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.wording import option


def doubts(entries: TensorEntries, config: TrainConfig) -> Iterator[str]:
    """What a user may not have meant; an error if nothing can be learned that way."""
    low, high = float(entries.values.min()), float(entries.values.max())
    probit = config.likelihood == "probit"
    if probit and not config.balance and low == high:
        remedy = f": {option('balance')} samples zeros beside ones" if high == 1.0 else ""
        text = f"probit must see values 0 and 1. Got {high:g} for all {len(entries):,} entries{remedy}."
        if config.method == "paper":
            raise DataError(text)
        yield f"{text} Nothing can be learnt but that."
    if config.balance and low == high == 0.0:
        raise DataError(f"{option('balance')} must see values that are not 0. Got 0 for all {len(entries):,} entries.")
    if probit:
        return
    if config.balance:
        yield f"{option('balance')} takes cells that the data does not hold as values of 0, beside the gaussian's real values."
    if low == high:
        yield f"all {len(entries):,} values are {high:g}: there is nothing to learn."
    elif bool(((entries.values == 0) | (entries.values == 1)).all()):
        yield f"all values are 0 or 1: {option('likelihood', 'probit')} is made for labels, gaussian for real values."


def divide(entries: TensorEntries, config: TrainConfig) -> tuple[TensorEntries, TensorEntries | None]:
    """Training entries and, if asked for, a seeded share of them that is only looked at."""
    if config.balance:
        entries = balance(entries, ratio=config.balance, seed=config.seed)
    count = min(round(config.validation * len(entries)), len(entries) - 1)
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
