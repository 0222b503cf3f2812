"""Errors and facts that all workers share before any of them goes on."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gptf_gpytorch.distributed.communicator import Communicator
from gptf_gpytorch.errors import CheckpointError, DataError, GPTFError, InputError, NumericalError, WorkerError

T = TypeVar("T")
_KINDS: dict[str, type[GPTFError]] = {
    kind.__name__: kind for kind in (InputError, DataError, NumericalError, CheckpointError)
}


def together(communicator: Communicator, step: Callable[[], T]) -> T:
    """The result of a step that every worker takes; if it fails on any of them, all raise the first one's error.

    A collective. The step itself must not contain one: a worker that fails would miss it.
    """
    if communicator.size == 1:
        return step()
    result, verdict = None, b""
    try:
        result = step()
    except Exception as error:  # the others must not wait for a worker that is gone
        verdict = _describe(error)
    found = communicator.gather_bytes(verdict)
    for worker, theirs in enumerate(found):
        if theirs:
            everywhere = all(verdict == theirs for verdict in found)
            raise _error(theirs, None if everywhere else worker)
    return result  # type: ignore[return-value]


def share(communicator: Communicator, error: Exception | None, worker: int) -> GPTFError:
    """The error that one worker has, on all of them. A collective."""
    payload = b"" if error is None else _describe(error)
    return _error(communicator.broadcast_bytes(payload, worker), worker if communicator.size > 1 else None)


def agree(communicator: Communicator, facts: Mapping[str, Any]) -> None:
    """An error on all workers if a fact is not the same on all. A collective.

    In an elastic job it is an error only on the workers that differ from worker 0: the others go on without them.

    :param facts: names and what this worker has for them, as JSON can hold it.
    """
    found = [json.loads(part) for part in communicator.gather_bytes(json.dumps(facts).encode())]
    for worker, theirs in enumerate(found):
        if communicator.elastic and worker != communicator.rank:
            continue
        for name in dict.fromkeys([*found[0], *theirs]):
            if found[0].get(name) != theirs.get(name):
                raise InputError(
                    f"All workers must run the same job: {name} must be {found[0].get(name)!r}, as on worker 0. "
                    f"Got {theirs.get(name)!r} on worker {worker}."
                )


def _describe(error: Exception) -> bytes:
    for name, kind in reversed(_KINDS.items()):
        if isinstance(error, kind):
            return json.dumps([name, str(error)]).encode()
    return json.dumps(["", str(error) if isinstance(error, GPTFError) else f"{type(error).__name__}: {error}"]).encode()


def _error(verdict: bytes, worker: int | None) -> GPTFError:
    name, message = json.loads(verdict)
    return _KINDS.get(name, WorkerError)(message if worker is None else f"Worker {worker}: {message}")
