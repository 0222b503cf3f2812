"""The ids of a mode's entities, and the row that each of them has."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from gptf_gpytorch.data import storage
from gptf_gpytorch.errors import DataError, InputError
from gptf_gpytorch.wording import option

UnseenPolicy = Literal["error", "prior"]
"""What an id that the vocabulary does not know becomes: an error, or row -1, which stands for the prior mean."""


class Vocabulary:
    """The ids of one mode, in the order of the rows: all strings, or all integers.

    Ids are kept exactly as they came. Two spellings that look alike (composed and decomposed accents, "1" and "01")
    are two ids.

    :param ids: distinct ids; the first gets row 0. :meth:`sorted` makes a vocabulary of ids in any order.

    Example:
        >>> users = Vocabulary(["ann", "bob", "Zoé"])
        >>> users.encode(["Zoé", "ann"])
        tensor([2, 0])
        >>> users.decode([1])
        ['bob']
        >>> users.encode(["ann", "eve"], unseen="prior")
        tensor([ 0, -1])

    """

    def __init__(self, ids: Iterable[str] | Iterable[int] | pa.Array) -> None:
        self._ids = as_ids(ids)
        distinct = pc.count_distinct(self._ids).as_py()
        if distinct != len(self._ids):
            counts = pc.value_counts(self._ids)
            again = counts.filter(pc.greater(counts.field("counts"), 1))[0].as_py()
            raise DataError(f"Ids of a vocabulary must be distinct. Got {again['values']!r} {again['counts']} times.")

    @classmethod
    def sorted(cls, *groups: "Iterable[str] | Iterable[int] | pa.Array | Vocabulary") -> "Vocabulary":
        """The distinct ids of all groups, integers by value and strings by code point: the same whatever the order."""
        arrays = [as_ids(group) for group in groups]
        arrays = [array for array in arrays if len(array)] or arrays[:1]
        kinds = {str(array.type) for array in arrays}
        if len(kinds) > 1:
            raise DataError(f"Ids of a mode must be all strings or all integers. Got groups of {sorted(kinds)}.")
        found = pc.unique(pa.chunked_array(arrays))
        return cls.trusted(found.take(pc.array_sort_indices(found)))

    @classmethod
    def trusted(cls, ids: pa.Array) -> "Vocabulary":
        """A vocabulary of ids that are known to be distinct, and large strings or 64-bit integers."""
        vocabulary = cls.__new__(cls)
        vocabulary._ids = ids
        return vocabulary

    @property
    def kind(self) -> Literal["string", "integer"]:
        """What the ids are."""
        return "integer" if pa.types.is_integer(self._ids.type) else "string"

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ids.to_pylist())

    def __contains__(self, item: object) -> bool:
        expected = int if self.kind == "integer" else str
        if not isinstance(item, expected) or isinstance(item, bool):
            return False
        try:
            return bool(pc.index(self._ids, pa.scalar(item, self._ids.type)).as_py() >= 0)
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
            return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and bool(self._ids.equals(other._ids))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(repr(item) for item in self._ids[:3].to_pylist())
        return f"Vocabulary([{shown}{', ...' if len(self) > 3 else ''}], {len(self)} {self.kind} ids)"

    @property
    def ids(self) -> pa.Array:
        """The ids as an Arrow array, in the order of the rows."""
        return self._ids

    def digest(self) -> bytes:
        """What tells one vocabulary from another: the SHA-256 of the ids in their order."""
        found = hashlib.sha256()
        for start in range(0, len(self), 2**16):
            part = pc.cast(self._ids[start : start + 2**16], pa.large_string())
            found.update(pc.binary_length(part).to_numpy().tobytes())
            found.update("".join(part.to_pylist()).encode())
        return bytes(found.digest())

    def encode(self, ids: Iterable[str] | Iterable[int] | pa.Array, unseen: UnseenPolicy = "error") -> Tensor:
        """The rows of ids.

        :param unseen: "error", or "prior": -1 for an id that is not known, whose entries have nothing but the prior.
        """
        check_unseen(unseen)
        wanted = as_ids(ids)
        if len(wanted) and wanted.type != self._ids.type:
            other = "integer" if pa.types.is_integer(wanted.type) else "string"
            raise DataError(
                f"Ids must be {self.kind}s, as the vocabulary's are. Got {other}s, {wanted[0].as_py()!r} first."
            )
        found = pc.index_in(wanted.cast(self._ids.type), value_set=self._ids)
        if unseen == "error" and found.null_count:
            place = pc.index(found.is_null(), True).as_py()
            raise DataError(
                f"Ids must be among the {len(self)} of the vocabulary (or pass {option('unseen', 'prior')}). "
                f"Got {wanted[place].as_py()!r} at position {place}; {found.null_count} ids are not known."
            )
        rows = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return torch.from_numpy(rows)

    def decode(self, rows: Sequence[int] | Tensor | np.ndarray[Any, Any]) -> list[Any]:
        """The ids of rows."""
        wanted = np.asarray(rows)
        if wanted.size == 0:
            return []
        if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
            raise InputError(f"Rows must be a list of integers. Got {wanted.dtype} of shape {list(wanted.shape)}.")
        low, high = int(wanted.min()), int(wanted.max())
        if low < 0 or high >= len(self):
            raise InputError(f"Rows must lie in [0, {len(self)}). Got {low if low < 0 else high}.")
        return list(self._ids.take(pa.array(wanted)).to_pylist())

    def __getitem__(self, row: int) -> Any:
        return self.decode([row])[0]

    def save(self, path: str | Path) -> None:
        """Write the ids to an Arrow IPC file, under a temporary name until it is whole."""
        target = Path(path)
        draft = target.with_name(f".{target.name}.draft")
        try:
            write_ids(self._ids, draft)
            storage.flush(draft)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
        storage.flush(target.absolute().parent)

    @classmethod
    def load(cls, path: str | Path) -> "Vocabulary":
        """Read what :meth:`save` wrote."""
        try:
            with pa.memory_map(str(path)) as source:
                table = pa.ipc.open_file(source).read_all()
            column = table.column("id")
        except (OSError, pa.ArrowInvalid, KeyError) as error:
            raise DataError(f"{path} must be a vocabulary that was saved whole. Got: {error}.") from error
        return cls(column.combine_chunks())


def write_ids(ids: pa.Array, path: Path) -> None:
    """One column, `id`, as an Arrow IPC file."""
    table = pa.table({"id": ids})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def check_unseen(policy: str) -> None:
    """One of the policies for ids that a vocabulary does not know."""
    if policy not in get_args(UnseenPolicy):
        raise InputError(f"unseen must be one of {', '.join(get_args(UnseenPolicy))}. Got {policy!r}.")


def as_ids(ids: Any) -> pa.Array:
    """Strings or 64-bit integers as one Arrow array without nulls; anything else is an error."""
    if isinstance(ids, Vocabulary):
        return ids._ids
    array = ids if isinstance(ids, pa.Array | pa.ChunkedArray) else _from_python(ids)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type) and not len(array):
        array = array.cast(pa.large_string())
    if array.null_count:
        place = pc.index(array.is_null(), True).as_py()
        raise DataError(f"Ids must not be missing. Got null at position {place}.")
    target = id_type(array.type)
    if target is None:
        raise DataError(
            f"Ids must be strings or integers. Got {array.type}{f', {array[0]} first' if len(array) else ''}."
        )
    try:
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise DataError(f"Integer ids must lie within 64 bits, signed. Got: {error}.") from error


def id_type(kind: pa.DataType) -> pa.DataType | None:
    """The type that ids of an Arrow type are kept in, or None where ids cannot be of that type."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.large_string()
    return None


def _from_python(ids: Any) -> pa.Array:
    if isinstance(ids, str | bytes):
        raise DataError(f"Ids must be a list of strings or integers. Got {ids!r}.")
    if isinstance(ids, Tensor):
        ids = ids.numpy()
    if not isinstance(ids, np.ndarray):
        ids = list(ids)
        odd = next(
            (item for item in ids if not isinstance(item, str | int | np.integer) or isinstance(item, bool)), None
        )
        if odd is not None or None in ids:
            raise DataError(f"Ids must be strings or integers. Got {odd!r}.")
    try:
        return pa.array(ids)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise DataError(f"Ids must be all strings, or all integers of 64 bits. Got: {error}.") from error
    except UnicodeEncodeError as error:
        raise DataError(
            f"Ids must be valid Unicode. Got {error.object!r} with a lone surrogate at {error.start}."
        ) from error
