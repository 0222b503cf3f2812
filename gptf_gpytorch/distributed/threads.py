"""Both cores busy: chunks are dealt to threads, and each thread computes on one core.

A chunk that fits the cache is too small to be worth splitting between cores inside every operation; a chunk for each
core is not. torch and NumPy release the interpreter while they compute.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits

_Result = TypeVar("_Result")


def split(job: Callable[[Sequence[Any]], _Result], chunks: Sequence[Any], threaded: bool) -> Iterator[_Result]:
    """Run ``job`` on disjoint parts of the chunks that together are all of them, and yield the results in order.

    The number of parts is the number of threads that torch may use (``OMP_NUM_THREADS``, ``torch.set_num_threads``),
    so the sums that come of it are the same bits at every call with the same setting.
    """
    threads = min(torch.get_num_threads(), len(chunks)) if threaded else 1
    if threads <= 1:
        yield job(chunks)
        return
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
            # Consecutive runs of chunks: neighbours share rows of the factor tables.
            bounds = [round(place * len(chunks) / threads) for place in range(threads + 1)]
            parts = [chunks[start:stop] for start, stop in pairwise(bounds)]
            yield from pool.map(job, parts)
    finally:
        torch.set_num_threads(before)
