"""Prunings at even distances, and how much is left after each: pure functions."""

from __future__ import annotations

import math


def evenly_spaced(first: int, last: int, count: int) -> list[int]:
    """`count` steps after `first` at even distances, the last at `last`; fewer where there are fewer steps.

    Args:
        first: The step that counting starts from.
        last: The step of the last one.
        count: How many there are.
    """
    return sorted({max(first + 1, first + round((last - first) * j / count)) for j in range(1, count + 1)})


def cut_share(weights: int, share: float, rounds: int) -> int:
    """What is left after `rounds` prunings that each take ceil(share of what is left).

    Args:
        weights: How many weights there are.
        share: The share that one round cuts.
        rounds: How many rounds have been made.
    """
    for _ in range(rounds):
        weights -= math.ceil(share * weights - 1e-9)
    return weights


def left_after(total: int, final: int, done: int, rounds: int) -> int:
    """What is left of `total` after `done` of `rounds` prunings that take equal shares; the last lands on `final`.

    Args:
        total: Weights (or MACs) at first.
        final: Weights (or MACs) at the end.
        done: Rounds that have been made.
        rounds: Rounds in all.
    """
    share = 1.0 - (final / total) ** (1 / rounds)
    return final if done == rounds else max(final, cut_share(total, share, done))


def rounds_at_rate(sparsity: float, rate: float) -> int:
    """The least number of prunings, each of at most the share `rate` of what is left, that reach `sparsity`.

    Args:
        sparsity: The share to cut by the end.
        rate: The share that one round cuts.
    """
    if not 0.0 < rate < 1.0:
        raise ValueError(f"rate={rate!r} is not between 0 and 1: 0.2 cuts a fifth of what is left each round")
    return max(1, math.ceil(math.log(1.0 - sparsity) / math.log(1.0 - rate) - 1e-9))
