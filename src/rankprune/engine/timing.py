"""Timings of calls in interleaved rounds, and their ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

BUDGET = 0.2  # seconds of a comparison, after the minimum number of rounds
PATIENCE = 0.5  # seconds after which the comparison of two calls ends although their ratio is not known
ROUNDS = (3, 40)  # minimum and maximum number of rounds
LONG = 0.05  # seconds of a call that takes much longer than threads spin and caches fill
KNOWN = 0.1  # a ratio is known if its interquartile range is below this fraction of it
NOISY = 1.25  # timings are noisy if the quartiles' ratio is above this


Settled = Callable[[list[list[float]]], bool]


def samples(calls: Sequence[Callable[[], Any]], settled: Settled | None = None) -> list[list[float]]:
    """Time calls in interleaved rounds, so that a slow phase of the machine affects all of them.

    A short call is made twice per round and only the second one counts, because idle threads of torch keep spinning on
    a core for a while; a long one only in the first round, to warm up. With two calls and no question to be settled,
    rounds continue until their ratio is known or patience ends.

    Args:
        calls: The functions.
        settled: Whether the seconds so far decide the question, so that no further rounds are needed.

    Returns:
        Seconds of each call in every round.
    """
    seconds: list[list[float]] = [[] for _ in calls]
    began = time.perf_counter()
    for turn in range(1, ROUNDS[1] + 1):
        for i, call in enumerate(calls):
            if not seconds[i] or min(seconds[i]) < LONG:
                call()
            seconds[i].append(_seconds(call))
        if turn < ROUNDS[0]:
            continue
        spent = time.perf_counter() - began
        if settled is not None and settled(seconds):
            break
        ratio_wanted = len(calls) == 2 and settled is None
        if spent > BUDGET and (not ratio_wanted or spent > PATIENCE or _known(*seconds)):
            break
    return seconds


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turns(calls: Sequence[Callable[[], Any]], settled: Settled | None = None) -> list[float]:
    """Time calls in interleaved rounds.

    Args:
        calls: The functions.
        settled: As in `samples`.

    Returns:
        Minimum seconds of each call.
    """
    return [min(seconds) for seconds in samples(calls, settled)]


def ratios(reference: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Return how many times faster one call is than another.

    Args:
        reference: Seconds of the reference, round by round.
        other: Seconds of the other call, round by round.

    Returns:
        First and third quartile of the rounds' ratios.
    """
    gains = [a / b for a, b in zip(reference, other)]
    if len(gains) < 2:
        return gains[0], gains[0]
    low, _, high = statistics.quantiles(gains, n=4, method="inclusive")
    return low, high


def _known(reference: Sequence[float], other: Sequence[float]) -> bool:
    low, high = ratios(reference, other)
    return high - low <= KNOWN * low
