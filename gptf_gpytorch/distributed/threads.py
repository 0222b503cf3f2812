"""Both cores busy: chunks are dealt to threads, and each thread computes on one core.

A chunk that fits the cache is too small to be worth splitting between cores inside every operation; a chunk for each
core is not. torch and NumPy release the interpreter while they compute.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import torch
from threadpoolctl import ThreadpoolController

_Result = TypeVar("_Result")


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that stay, because what they have allocated stays with them."""
    return ThreadPoolExecutor(threads, thread_name_prefix="gptf-chunks")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has the pool, but not its threads


@cache
def _libraries() -> ThreadpoolController:
    """The thread pools of the loaded BLAS libraries; looking for them takes longer than a chunk."""
    return ThreadpoolController()


def split(job: Callable[[Sequence[Any]], _Result], chunks: Sequence[Any], threaded: bool) -> Iterator[_Result]:
    """Run ``job`` on disjoint parts of the chunks that together are all of them, and yield the results in order.

    The number of parts is the number of threads that torch may use (``OMP_NUM_THREADS``, ``torch.set_num_threads``),
    so the sums that come of it are the same bits at every call with the same setting.
    """
    if not threaded or not chunks:
        yield job(chunks)
        return
    before = torch.get_num_threads()
    threads = min(before, len(chunks))
    # Consecutive runs of chunks: neighbours share rows of the factor tables.
    bounds = [round(place * len(chunks) / threads) for place in range(threads + 1)]
    parts = [chunks[start:stop] for start, stop in pairwise(bounds)]
    try:
        torch.set_num_threads(1)
        with _libraries().limit(limits=1, user_api="blas"):
            # This thread takes the first part: with one thread, nothing is handed over.
            others = [_pool(threads - 1).submit(job, part) for part in parts[1:]]
            yield job(parts[0])
            yield from (other.result() for other in others)
    finally:
        torch.set_num_threads(before)
