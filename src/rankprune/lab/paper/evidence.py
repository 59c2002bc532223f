"""What may be claimed from a few runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

LEAST = 3  # runs on either side of a claim
ERRORS = 2.0  # standard errors of the difference that a claim needs
_CHANCE = (0.07, 0.13)  # ten classes: within three points of 10 %


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean; None where one run says nothing of it."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def beats(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether the mean of `ours` is higher by more than two standard errors of the difference, on three runs each."""
    if min(len(ours), len(theirs)) < LEAST:
        return False
    spread = math.hypot(*(statistics.stdev(values) / math.sqrt(len(values)) for values in (ours, theirs)))
    return statistics.fmean(ours) - statistics.fmean(theirs) > ERRORS * spread


Accuracies = Mapping[str, Mapping[float, Sequence[float]]]  # by name and sparsity, one a seed


def best(candidates: Accuracies, singles: Accuracies, at: Sequence[float]) -> str | None:
    """The candidate that beats every single method at every sparsity of `at`; None where there is none.

    A single method that was not run often enough is not beaten.
    """
    winners = [
        name
        for name, runs in candidates.items()
        if all(beats(runs.get(s, ()), other.get(s, ())) for other in singles.values() for s in at)
    ]
    return max(winners, key=lambda w: sum(statistics.fmean(candidates[w][s]) for s in at), default=None)


def at_chance(accuracy: float) -> bool:
    """Of ten classes: nothing was learned, or all of it was lost."""
    return _CHANCE[0] <= accuracy <= _CHANCE[1]


def percent(values: Sequence[float]) -> str:
    """Accuracies (shares) of ten classes as their mean ± standard error and, of several, their number."""
    mean, error = statistics.fmean(values), standard_error(values)
    text = f"{100 * mean:.2f}" if error is None else f"{100 * mean:.2f} ± {100 * error:.2f} ({len(values)})"
    return f"at chance ({text})" if at_chance(mean) else text


def number(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard error of anything else."""
    mean, error = statistics.fmean(values), standard_error(values)
    return f"{mean:.{digits}f}" if error is None else f"{mean:.{digits}f} ± {error:.{digits}f}"
