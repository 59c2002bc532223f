"""Timings of calls in interleaved rounds, and their ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

BUDGET = 0.5  # seconds of a comparison, after the minimum number of rounds
TURNS = (4, 40)  # minimum and maximum number of rounds
KNOWN = 0.1  # a ratio is known if its interquartile range is below this fraction of it
NOISY = 1.25  # timings are noisy if the quartiles' ratio is above this


def samples(calls: Sequence[Callable[[], Any]], budget: float = BUDGET) -> list[list[float]]:
    """Time calls in interleaved rounds, so that a slow phase of the machine affects all of them.

    Each is called twice per round and only the second call counts, because idle threads of torch keep spinning on a
    core
    for a while. With two calls, rounds continue for up to twice the budget until their ratio is known.

    Args:
        calls: The functions.
        budget: Seconds, after the minimum number of rounds.

    Returns:
        Seconds of each call in every round.
    """
    seconds: list[list[float]] = [[] for _ in calls]
    began = 0.0
    for turn in range(TURNS[1] + 1):
        for call, mine in zip(calls, seconds):
            call()
            start = time.perf_counter()
            call()
            if turn:  # the first turn warms up
                mine.append(time.perf_counter() - start)
        spent = time.perf_counter() - began
        if not turn:
            began = time.perf_counter()
        elif turn >= TURNS[0] and spent > budget and (len(calls) != 2 or spent > 2 * budget or _known(*seconds)):
            break
    return seconds


def in_turns(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Time calls in interleaved rounds.

    Args:
        calls: The functions.

    Returns:
        Minimum seconds of each call.
    """
    return [min(mine) for mine in samples(calls)]


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, float]:
    """Return how many times faster one call is than another.

    Args:
        theirs: Seconds of the reference, round by round.
        ours: Seconds of the other call, round by round.

    Returns:
        First and third quartile of the rounds' ratios.
    """
    found = [a / b for a, b in zip(theirs, ours)]
    if len(found) < 2:
        return found[0], found[0]
    low, _, high = statistics.quantiles(found, n=4, method="inclusive")
    return low, high


def _known(theirs: Sequence[float], ours: Sequence[float]) -> bool:
    low, high = ratios(theirs, ours)
    return high - low <= KNOWN * low
