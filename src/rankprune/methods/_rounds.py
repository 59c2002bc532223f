"""Prunings at even distances, and how much is left after each."""

from __future__ import annotations

import math


def evenly(first: int, last: int, count: int) -> list[int]:
    """`count` steps after `first` at even distances, the last at `last`; fewer where there are fewer steps."""
    return sorted({max(first + 1, first + round((last - first) * j / count)) for j in range(1, count + 1)})


def cut_share(weights: int, share: float, rounds: int) -> int:
    """What is left after `rounds` prunings that each take ceil(share of what is left)."""
    for _ in range(rounds):
        weights -= math.ceil(share * weights - 1e-9)
    return weights


def check_rounds(name: str, rounds: object) -> None:
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"{name} has rounds={rounds!r}, which is not a number of prunings: give an int of 1 or more")
