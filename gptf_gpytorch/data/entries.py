"""The entries of a sparse tensor, validated once."""

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.data import rules, storage
from gptf_gpytorch.data.vocabulary import UnseenPolicy, Vocabulary, check_unseen, write_ids
from gptf_gpytorch.errors import DataError, InputError

FORMAT, VERSION, MANIFEST = "gptf_gpytorch.entries", 1, "entries.json"
_ROWS = ("indices", "values", "weights", "times")


@dataclass(frozen=True, eq=False, repr=False)
class TensorEntries:
    """N entries of a tensor with K modes: where they are, and what they are.

    What is passed in is checked and copied, once; slices, shards and chunks are views. Treat the tensors as read-only.

    :param indices: `[N, K]` integers from 0, kept as int32 where the shape allows it. Row -1 stands for an entity that
        is not known; it is allowed with ``unseen="prior"``.
    :param values: `[N]` finite numbers, kept as float64, or as float32 if that is what came.
    :param shape: the number of entities of each mode.
    :param names: of the modes; `mode_0`, `mode_1`, ... by default.
    :param vocabularies: the ids of each mode, or None for a mode whose ids are its rows.
    :param weights: `[N]` numbers that are finite and not negative, what an entry counts in the bound.
    :param times: `[N]` numbers to split by; those of timestamps are microseconds since 1970 (UTC).

    Example:
        >>> entries = TensorEntries([[0, 1, 0], [2, 0, 1]], [1.5, -2.0], shape=(3, 2, 2))
        >>> entries
        TensorEntries(2 entries of 3 x 2 x 2 = 12 cells (16.7%), values -2 to 1.5, modes mode_0, mode_1, mode_2)
        >>> entries.shard(1, 2).indices
        tensor([[2, 0, 1]], dtype=torch.int32)

    """

    indices: Tensor
    values: Tensor
    shape: tuple[int, ...]
    names: tuple[str, ...] = ()
    vocabularies: tuple[Vocabulary | None, ...] = ()
    weights: Tensor | None = None
    times: Tensor | None = None
    unseen: UnseenPolicy = "error"
    _trusted: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self._trusted:
            return
        check_unseen(self.unseen)
        self._put("shape", rules.shape(self.shape))
        self._put("names", rules.names(self.names, len(self.shape)))
        self._put("vocabularies", rules.vocabularies(self.vocabularies, self.shape, self.names))
        self._put("indices", rules.indices(self.indices, self.shape, self.names, -1 if self.unseen == "prior" else 0))
        self._put("values", rules.numbers("Values", self.values, len(self)))
        if self.weights is not None:
            self._put("weights", rules.numbers("Weights", self.weights, len(self), low=0.0))
        if self.times is not None:
            self._put("times", rules.numbers("Times", self.times, len(self), integers=True))
        self._put("_trusted", True)

    def _put(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.indices)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorEntries):
            return NotImplemented
        return all(_same(getattr(self, item.name), getattr(other, item.name)) for item in fields(self))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        sizes = " x ".join(f"{size:,}" for size in self.shape)
        about = [f"{len(self):,} entries of {sizes} = {self.cells:,} cells ({100 * len(self) / self.cells:.3g}%)"]
        if len(self):
            low, high = float(self.values.min()), float(self.values.max())
            ones = int((self.values == 1).sum())
            if ones + int((self.values == 0).sum()) == len(self):
                about.append(f"{ones:,} ones and {len(self) - ones:,} zeros")
            else:
                about.append(f"values {low:.4g} to {high:.4g}")
        about.append(f"modes {', '.join(self.names)}")
        about += [name for name in ("weights", "times") if getattr(self, name) is not None]
        return f"TensorEntries({', '.join(about)})"

    @property
    def cells(self) -> int:
        """The number of cells of the tensor, known and unknown."""
        return math.prod(self.shape)

    @property
    def known(self) -> Tensor:
        """`[N]`: whether every entity of the entry is known; the other entries have nothing but the prior mean."""
        return (self.indices >= 0).all(dim=1)

    def __getitem__(self, rows: Any) -> "TensorEntries":
        """The entries of a slice (a view), of a list or tensor of positions, or of a mask."""
        chosen: Any = rows
        if not isinstance(rows, slice):
            chosen = self._positions(rows)
        elif rows.step is not None and rows.step < 0:  # torch has no views that run backwards
            chosen = torch.tensor(range(len(self))[rows], dtype=torch.long)
        parts: dict[str, Any] = {
            name: None if (part := getattr(self, name)) is None else part[chosen] for name in _ROWS
        }
        return replace(self, **parts)

    def _positions(self, rows: Any) -> Tensor:
        wanted = torch.as_tensor(np.asarray(rows) if not isinstance(rows, Tensor) else rows)
        if wanted.dim() != 1:
            raise InputError(
                f"Entries are taken by a slice, a list of positions or a mask (entries[3:4] for one). Got {rows!r}."
            )
        if wanted.dtype == torch.bool:
            if len(wanted) != len(self):
                raise InputError(f"A mask must have one value for each of {len(self)} entries. Got {len(wanted)}.")
            return wanted.nonzero()[:, 0]
        if not len(wanted):
            return wanted.long()
        if wanted.is_floating_point() or wanted.is_complex():
            raise InputError(f"Positions must be integers. Got {wanted.dtype}.")
        low, high = int(wanted.min()), int(wanted.max())
        if low < -len(self) or high >= len(self):
            raise InputError(f"Positions must lie in [0, {len(self)}). Got {low if low < -len(self) else high}.")
        return wanted.long()

    def shard(self, rank: int, size: int) -> "TensorEntries":
        """The share of one worker: a contiguous block, so that the shards in the order of ranks are these entries.

        Shards are disjoint, hold every entry once, and differ in length by at most one.
        """
        rank, size = operator.index(rank), operator.index(size)
        if size < 1 or not 0 <= rank < size:
            raise InputError(f"A shard needs size >= 1 and 0 <= rank < size. Got rank {rank} of size {size}.")
        return self[len(self) * rank // size : len(self) * (rank + 1) // size]

    def chunks(self, size: int) -> Iterator["TensorEntries"]:
        """Consecutive views of at most ``size`` entries."""
        size = operator.index(size)
        if size < 1:
            raise InputError(f"The size of a chunk must be at least 1. Got {size}.")
        return (self[start : start + size] for start in range(0, len(self), size))

    @classmethod
    def concat(cls, parts: "Sequence[TensorEntries]") -> "TensorEntries":
        """All entries of parts of one tensor, in order."""
        parts = list(parts)
        if not parts:
            raise InputError("concat needs at least one part. Got none.")
        first = parts[0]
        for name in ("shape", "names", "vocabularies", "unseen"):
            for part in parts[1:]:
                if getattr(part, name) != getattr(first, name):
                    raise InputError(
                        f"Parts must have the same {name}. Got {getattr(first, name)} and {getattr(part, name)}."
                    )
        joined: dict[str, Any] = {}
        for name in _ROWS:
            found = [getattr(part, name) for part in parts]
            if any(part is None for part in found) and not all(part is None for part in found):
                raise InputError(f"Either all parts or none must have {name}. Got a mixture.")
            joined[name] = None if found[0] is None else torch.cat(found)
        return replace(first, **joined)

    def ids(self, rows: Any = slice(None)) -> list[tuple[Any, ...]]:
        """The cells of entries in the user's ids: rows where a mode has no vocabulary, None where an id is unknown."""
        indices = self[rows].indices
        columns = []
        for mode, vocabulary in enumerate(self.vocabularies):
            column = indices[:, mode]
            if vocabulary is None:
                columns.append([None if row < 0 else row for row in column.tolist()])
            else:
                found = iter(vocabulary.decode(column[column >= 0].numpy()))
                columns.append([next(found) if row >= 0 else None for row in column.tolist()])
        return list(zip(*columns, strict=True))

    def save(self, folder: str | Path) -> None:
        """Write a folder of `.npy` files, a vocabulary a mode and a manifest; it appears whole or not at all."""
        with storage.new_folder(Path(folder)) as draft:
            for name in _ROWS:
                part = getattr(self, name)
                if part is not None:
                    np.save(draft / f"{name}.npy", part.numpy(), allow_pickle=False)
            for mode, vocabulary in enumerate(self.vocabularies):
                if vocabulary is not None:
                    write_ids(vocabulary.ids, draft / f"vocabulary-{mode}.arrow")
            content = {"format": FORMAT, "version": VERSION, "count": len(self), "shape": list(self.shape)}
            storage.write_manifest(draft, MANIFEST, {**content, "names": list(self.names), "unseen": self.unseen})

    @classmethod
    def load(cls, folder: str | Path, *, mmap: bool = True, verify: bool = True) -> "TensorEntries":
        """Read what :meth:`save` wrote.

        :param mmap: map the arrays, so that only what is used is read, when it is used.
        :param verify: compare the SHA-256 of every file, which reads all of them once.
        """
        folder = Path(folder)
        content = storage.read_manifest(folder, MANIFEST, kind=FORMAT, version=VERSION, verify=verify)
        try:
            count, shape = int(content["count"]), tuple(int(d) for d in content["shape"])
            names, unseen, files = tuple(content["names"]), content["unseen"], content["sha256"]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder / MANIFEST} must be a manifest that was saved whole. Got: {error!r}.") from error
        parts: dict[str, Any] = dict.fromkeys(_ROWS)
        for name in _ROWS:
            if f"{name}.npy" in files:
                array = storage.load_array(folder / f"{name}.npy", mmap=mmap)
                if len(array) != count:
                    raise DataError(f"{folder / name}.npy must hold {count} entries. Got {len(array)}.")
                parts[name] = torch.from_numpy(array)
        if parts["indices"] is None or parts["values"] is None or parts["indices"].shape != (count, len(shape)):
            raise DataError(f"{folder} must hold indices [{count}, {len(shape)}] and values. Got {sorted(files)}.")
        vocabularies = tuple(
            Vocabulary.load(path) if (path := folder / f"vocabulary-{mode}.arrow").name in files else None
            for mode in range(len(shape))
        )
        return cls(shape=shape, names=names, vocabularies=vocabularies, unseen=unseen, _trusted=True, **parts)


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        return mine.dtype == theirs.dtype and torch.equal(mine, theirs)
    return bool(mine == theirs) if not isinstance(mine, Tensor) and not isinstance(theirs, Tensor) else False
