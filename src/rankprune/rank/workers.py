"""Work on many layers in parallel, over threads and processes.

Many small decompositions, each on one thread, are faster than one after the other on all threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def assign_owners(costs: Sequence[float], count: int) -> list[int]:
    """Which of `count` processes does each job: the costliest first, each by the one with the least work so far.

    The longest process takes at most 4/3 of the best possible time (Graham 1969). A pure function, so all ranks agree.

    Args:
        costs: What each job costs.
        count: How many processes there are.

    Returns:
        The process of each job.
    """
    load, owners = [0.0] * count, [0] * len(costs)
    for job in sorted(range(len(costs)), key=lambda j: -costs[j]):
        owners[job] = min(range(count), key=load.__getitem__)
        load[owners[job]] += costs[job]
    return owners


def run_in_parallel(work: Callable[[T], None], jobs: Iterable[T], cost: Callable[[T], float]) -> None:
    """Call `work` on each job, the costliest first, in `torch.get_num_threads()` workers of one thread each.

    The result of a job then does not depend on the number of threads. The calling thread is one of the workers.

    Args:
        work: Does one job.
        jobs: The jobs.
        cost: What a job costs.
    """
    queue = sorted(jobs, key=lambda job: -cost(job))
    waiting = iter(queue)

    def drain() -> None:
        torch.set_num_threads(1)  # per worker: OpenMP's setting is per thread, and a new thread starts with all
        for job in waiting:
            work(job)

    threads = torch.get_num_threads()
    helpers = min(threads, len(queue)) - 1
    try:
        with ThreadPoolExecutor(max(helpers, 1)) as pool:  # starts no thread before it is given work
            running = [pool.submit(drain) for _ in range(helpers)]
            drain()
        for helper in running:
            helper.result()
    finally:
        torch.set_num_threads(threads)
