"""What a caller asks of a reader, and how a reader says that the data breaks a rule."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch

from gptf_gpytorch.data.duplicates import DuplicatePolicy, check_policy
from gptf_gpytorch.data.vocabulary import UnseenPolicy, Vocabulary, check_unseen
from gptf_gpytorch.errors import DataError, InputError

IdKind = Literal["auto", "string", "integer"]
"""What the ids of a mode are: as the source's types say (for text: integers if every id reads as one), or as told."""


@dataclass(frozen=True)
class Source:
    """Where data comes from, in words.

    :param name: of the file, or of what was passed.
    :param place: turns the position of an entry, from 0, into the words for an error: "line 12 of clicks.csv".
    """

    name: str
    place: Callable[[int], str]

    def complain(self, rule: str, value: Any, column: str | None, row: int) -> DataError:
        """The error for a value that breaks a rule."""
        inside = f" in column {column!r}" if column is not None else ""
        return DataError(f"{rule} Got {_short(value)}{inside} at {self.place(row)}.")


@dataclass(frozen=True)
class Chosen:
    """The columns that play a part."""

    modes: tuple[str, ...]
    value: str
    weight: str | None
    time: str | None

    @property
    def all(self) -> tuple[str, ...]:
        """Every column that is read."""
        return tuple(name for name in (*self.modes, self.value, self.weight, self.time) if name is not None)


@dataclass(frozen=True)
class Request:
    """The options of :func:`gptf_gpytorch.data.read`, validated."""

    value: str = "value"
    modes: tuple[str, ...] | None = None
    weight: str | None = None
    time: str | None = None
    binary: bool = False
    shape: tuple[int, ...] | None = None
    duplicates: DuplicatePolicy = "error"
    ids: IdKind | Mapping[str, IdKind] = "auto"
    vocabularies: Mapping[str, Vocabulary] | Sequence[Vocabulary | None] = field(default_factory=dict)
    unseen: UnseenPolicy = "error"
    index_base: int | None = None
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        check_policy(self.duplicates)
        check_unseen(self.unseen)
        for kind in self.ids.values() if isinstance(self.ids, Mapping) else [self.ids]:
            if kind not in get_args(IdKind):
                raise InputError(f"ids must be one of {', '.join(get_args(IdKind))}. Got {kind!r}.")
        if self.index_base not in (None, 0, 1):
            raise InputError(f"index_base must be 0 or 1 (or None: ids with a vocabulary). Got {self.index_base!r}.")
        if self.dtype not in (torch.float64, torch.float32):
            raise InputError(f"dtype must be torch.float64 or torch.float32. Got {self.dtype}.")
        for name, given in (("modes", self.modes), ("shape", self.shape)):
            if isinstance(given, str):
                raise InputError(f"{name} must be a sequence, one item for each mode. Got {given!r}.")
            if given is not None:
                object.__setattr__(self, name, tuple(given))

    def choose(self, columns: Sequence[str], source: Source, *, left_out: Sequence[str] = ()) -> Chosen:
        """The columns by name; all that are not something else are modes, unless modes are named.

        :param left_out: columns that are modes only if they are named.
        """
        twice = next((name for place, name in enumerate(columns) if name in columns[:place]), None)
        if twice is not None:
            raise DataError(f"Columns must have distinct names. Got {twice!r} more than once in {source.name}.")
        others = {name for name in (self.value, self.weight, self.time) if name is not None}
        modes = self.modes or tuple(name for name in columns if name not in others and name not in left_out)
        chosen = Chosen(modes, self.value, self.weight, self.time)
        for name in chosen.all:
            if name not in columns:
                near = difflib.get_close_matches(name, columns, n=2, cutoff=0.5) or columns
                hint = f"the nearest are {', '.join(map(repr, near[:8]))}" if near else "it has no columns"
                raise DataError(f"Column {name!r} must be in {source.name}. Got {len(columns)} columns; {hint}.")
        if not modes:
            raise DataError(f"At least one column must be a mode. Got {', '.join(columns)} in {source.name}.")
        if len(set(chosen.all)) < len(chosen.all):
            raise InputError(f"A column can be one thing: a mode, the value, the weight or the time. Got {chosen.all}.")
        if self.shape is not None and len(self.shape) != len(modes):
            raise InputError(f"shape must have one size for each of the modes {modes}. Got {self.shape}.")
        self.check_names(modes)
        return chosen

    def check_names(self, modes: Sequence[str]) -> None:
        """Options by mode must be about modes that there are."""
        for name, given in (("vocabularies", self.vocabularies), ("ids", self.ids)):
            if isinstance(given, Mapping) and (odd := [key for key in given if key not in modes]):
                raise InputError(f"{name} must be of the modes {', '.join(modes)}. Got {odd[0]!r}.")
        if not isinstance(self.vocabularies, Mapping) and len(self.vocabularies) not in (0, len(modes)):
            raise InputError(
                f"There must be a vocabulary (or None) for each of {len(modes)} modes. Got {len(self.vocabularies)}."
            )

    def vocabulary(self, mode: int, name: str) -> Vocabulary | None:
        """The vocabulary that was given for a mode."""
        if isinstance(self.vocabularies, Mapping):
            return self.vocabularies.get(name)
        return self.vocabularies[mode] if self.vocabularies else None

    def kind(self, mode: int, name: str) -> IdKind:
        """What the ids of a mode are: those of a given vocabulary are what its ids are."""
        given = self.vocabulary(mode, name)
        if given is not None:
            return given.kind
        return self.ids.get(name, "auto") if isinstance(self.ids, Mapping) else self.ids


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:100]}... ({len(text):,} characters)"
