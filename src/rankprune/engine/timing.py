"""Times of calls that take turns, and how many times faster one is than another."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

BUDGET = 0.5  # seconds of a comparison, beyond its least number of turns
TURNS = (4, 40)
KNOWN = 0.1  # a ratio is known when the middle half of its values lies within this share of it
NOISY = 1.25  # the middle half of the values lies further apart than this


def samples(calls: Sequence[Callable[[], Any]], budget: float = BUDGET) -> list[list[float]]:
    """Seconds of each call, turn by turn, so that a slow spell of the machine falls on all of them.

    Each is called twice and the second call counts: threads of torch that wait for work keep a core busy for a while.
    With two calls, turns go on for up to twice the budget until their ratio is known.
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
    """Least seconds of each call."""
    return [min(mine) for mine in samples(calls)]


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, float]:
    """How many times faster, as the first and third quartile of the turns' ratios."""
    found = [a / b for a, b in zip(theirs, ours)]
    if len(found) < 2:
        return found[0], found[0]
    low, _, high = statistics.quantiles(found, n=4, method="inclusive")
    return low, high


def _known(theirs: Sequence[float], ours: Sequence[float]) -> bool:
    low, high = ratios(theirs, ours)
    return high - low <= KNOWN * low
