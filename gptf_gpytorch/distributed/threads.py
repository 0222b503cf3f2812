"""All cores busy: chunks are dealt to threads, and each thread computes on one core.

A chunk that fits the cache is too small to be worth splitting between cores inside every operation; a chunk for each
core is not. torch and NumPy release the interpreter while they compute.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import torch
from threadpoolctl import ThreadpoolController

from gptf_gpytorch.health import Fact

_Result = TypeVar("_Result")
_DEFAULT = torch.get_num_threads()


def describe() -> Iterator[Fact]:
    """How many chunks will be mapped at a time."""
    count = available()
    yield Fact(
        "map", f"{count} chunk{'s' if count > 1 else ''} at a time, one core each (set OMP_NUM_THREADS to change it)"
    )


def available() -> int:
    """The number of threads for this worker: what torch was given or, on a machine that Horovod has put several workers
    on, this worker's share of it.

    A number that was set on purpose (``OMP_NUM_THREADS``, ``torch.set_num_threads``) is each worker's own.
    """
    threads, neighbours = torch.get_num_threads(), os.environ.get("HOROVOD_LOCAL_SIZE", "1")
    if "OMP_NUM_THREADS" in os.environ or threads != _DEFAULT or not neighbours.isdecimal():
        return threads
    return max(1, threads // max(1, int(neighbours)))


def split(job: Callable[[Sequence[Any]], _Result], chunks: Sequence[Any], threaded: bool) -> Iterator[_Result]:
    """Run ``job`` on disjoint parts of the chunks that together are all of them, and yield the results in order.

    The number of parts is the number of threads that this worker may use, so
    the sums that come of it are the same bits at every call with the same setting.
    """
    if not threaded or not chunks:
        yield job(chunks)
        return
    with one_core_each() as cores:
        threads = min(cores, len(chunks))
        # Consecutive runs of chunks: neighbours share rows of the factor tables.
        bounds = [round(place * len(chunks) / threads) for place in range(threads + 1)]
        parts = [chunks[start:stop] for start, stop in pairwise(bounds)]
        # This thread takes the first part: with one thread, nothing is handed over.
        others = [_pool(threads - 1).submit(job, part) for part in parts[1:]]
        yield job(parts[0])
        yield from (other.result() for other in others)


def everywhere(job: Callable[[range], _Result], rows: int) -> list[_Result]:
    """A job on equal parts of the rows, on all cores if there are enough to be worth it.

    There are several parts for each core, because they may not take the same time: memory that is touched for the first
    time is slow.
    """
    cores = available() if rows > 2**20 else 1
    if cores == 1:
        return [job(range(rows))]
    count = 8 * cores
    parts = [range(part * rows // count, (part + 1) * rows // count) for part in range(count)]
    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(job, parts))


class _OneCoreEach:
    """While anyone is inside, torch and the BLAS libraries use one thread for each operation; the last one out restores.

    An evaluation is inside as a whole: after an operation on several cores the threads of OpenMP stay there, spinning,
    for a few milliseconds, and would keep the threads of chunks from starting.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._before, self._share = threading.Lock(), 0, 1, 1
        self._limit: Any = None
        self._here = threading.local()

    @contextmanager
    def __call__(self) -> Iterator[int]:
        """Enter; the value is the number of threads to use."""
        with self._lock:
            if self._inside == 0:
                self._before, self._share = torch.get_num_threads(), available()
                self._limit = _libraries().limit(limits=1, user_api="blas")
            self._inside += 1
        # OpenMP and MKL know a number for each thread, so each thread that enters sets its own.
        deep = getattr(self._here, "deep", 0)
        if not deep:
            torch.set_num_threads(1)
        self._here.deep = deep + 1
        try:
            yield self._share
        finally:
            self._here.deep = deep
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._limit.restore_original_limits()
            if not deep:
                torch.set_num_threads(self._before)


#: ``with one_core_each():`` for small operations before chunks are mapped.
one_core_each = _OneCoreEach()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that stay, because what they have allocated stays with them.

    torch and MKL know a number of threads for each thread: these are to use one, whoever waits for them.
    """
    return ThreadPoolExecutor(threads, "gptf-chunks", initializer=torch.set_num_threads, initargs=(1,))


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has the pool, but not its threads


@cache
def _libraries() -> ThreadpoolController:
    """The thread pools of the loaded BLAS libraries; looking for them takes longer than a chunk."""
    return ThreadpoolController()
