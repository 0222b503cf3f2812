"""Training and test sets: the paper's folds and hold-outs, and splits in time. Seeded: the same wherever they run."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.data.sampling import _whole, sample_zeros
from gptf_gpytorch.errors import DataError, InputError


@dataclass(frozen=True)
class Split:
    """One training set, and what it is tested on.

    :param train: entries to train on. ``balance(split.train, exclude=split.held_out)`` adds zeros.
    :param tests: the test sets.
    :param held_out: everything that must not be trained on: all entries that are not in ``train``, and all test zeros.
    """

    train: TensorEntries
    tests: tuple[TensorEntries, ...]
    held_out: tuple[TensorEntries, ...]

    @property
    def test(self) -> TensorEntries:
        """The test set, where there is one."""
        if len(self.tests) != 1:
            raise InputError(f"There must be one test set to speak of `test`. Got {len(self.tests)}: use `tests`.")
        return self.tests[0]


def folds(entries: TensorEntries, k: int = 5, *, zeros: float = 0.001, seed: int = 0) -> list[Split]:
    """Divide into k folds, each tested with the entries of the fold and with zeros: the paper's cross-validation.

    :param entries: all nonzeros (or all entries, with ``zeros=0``). Each is in the test set of one fold.
    :param zeros: how many of the cells without an entry are test zeros of a fold; the paper's is 0.1%.
    """
    k = _whole("k", k, 2)
    if k > len(entries):
        raise InputError(f"k must be at most the number of entries, {len(entries)}. Got {k}.")
    if not 0 <= zeros < 1:
        raise InputError(f"zeros must be a fraction of the cells without an entry, in [0, 1). Got {zeros!r}.")
    order = np.random.default_rng([_whole("seed", seed, 0), 2]).permutation(len(entries))
    count = round(zeros * (entries.cells - len(entries)))
    found = []
    for fold in range(k):
        inside = np.zeros(len(entries), dtype=bool)
        inside[order[fold::k]] = True
        train, test = entries[torch.from_numpy(~inside)], entries[torch.from_numpy(inside)]
        if count:
            test = _with_zeros(test, entries, count, (seed, fold))
        found.append(Split(train, (test,), (test,)))
    return found


def holdout(
    entries: TensorEntries,
    fraction: float = 0.2,
    *,
    sets: int = 1,
    nonzeros: int | None = None,
    zeros: int = 0,
    seed: int = 0,
) -> Split:
    """Hold out a fraction of the entries, and draw test sets from it: the paper's 80/20 with m test sets.

    :param entries: all nonzeros.
    :param sets: the number of test sets, m.
    :param nonzeros: how many of the held-out entries a test set has; all by default. The paper's is 200.
    :param zeros: how many zeros a test set has, from the cells without an entry. The paper's is 1,800 or 2,000.
    """
    if not 0 < fraction < 1:
        raise InputError(f"fraction must lie in (0, 1). Got {fraction!r}.")
    sets, zeros = _whole("sets", sets, 1), _whole("zeros", zeros, 0)
    generator = np.random.default_rng([_whole("seed", seed, 0), 3])
    order = generator.permutation(len(entries))
    size = round(fraction * len(entries))
    if not 0 < size < len(entries):
        raise InputError(f"fraction must leave entries on both sides. Got {size} of {len(entries)} held out.")
    held, kept = (entries[torch.from_numpy(np.sort(part))] for part in (order[:size], order[size:]))
    each = size if nonzeros is None else _whole("nonzeros", nonzeros, 0)
    if each > size:
        raise InputError(f"nonzeros of a test set must be at most the {size} that are held out. Got {each}.")
    tests = []
    for number in range(sets):
        chosen = np.sort(generator.permutation(size)[:each])
        test = held[torch.from_numpy(chosen)]
        tests.append(_with_zeros(test, entries, zeros, (seed, number)) if zeros else test)
    return Split(kept, tuple(tests), (held, *tests))


def split_by_time(entries: TensorEntries, at: Any = None, *, fraction: float | None = None) -> Split:
    """Train on the past, test on what came later.

    :param at: the first moment of the test set: a number, or for timestamps a `datetime` or its ISO text (UTC if it has
        no zone).
    :param fraction: or, the share of the entries that come last. Entries of one moment stay on one side.
    """
    if entries.times is None:
        raise InputError("Entries must have times: read(..., time=the column). Got none.")
    if (at is None) == (fraction is None):
        raise InputError(f"Either at or fraction must say where to split. Got at={at!r} and fraction={fraction!r}.")
    times = entries.times
    if fraction is not None:
        if not 0 < fraction < 1:
            raise InputError(f"fraction must lie in (0, 1). Got {fraction!r}.")
        place = len(entries) - max(1, round(fraction * len(entries)))
        moment: Any = times.sort().values[place].item()
    else:
        moment = _moment(at)
    later = times >= moment
    if not bool(later.any()) or bool(later.all()):
        raise DataError(
            f"A split in time must have entries on both sides. Got times from {times.min().item()} to "
            f"{times.max().item()}, split at {moment}."
        )
    train, test = entries[~later], entries[later]
    return Split(train, (test,), (test,))


def _moment(at: Any) -> Any:
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError as error:
            raise InputError(f"at must be a number, a datetime or its ISO text. Got {at!r}.") from error
    if isinstance(at, datetime):
        aware = at if at.tzinfo else at.replace(tzinfo=UTC)
        since = aware - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if isinstance(at, bool) or not isinstance(at, int | float | np.number):
        raise InputError(f"at must be a number, a datetime or its ISO text. Got {at!r}.")
    return at


def _with_zeros(test: TensorEntries, known: TensorEntries, count: int, seed: tuple[int, int]) -> TensorEntries:
    """A test set with zeros from cells that are not known, drawn independently for each; zeros have no times."""
    own = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
    return TensorEntries.concat([replace(test, times=None), sample_zeros(known, count, seed=own)])
