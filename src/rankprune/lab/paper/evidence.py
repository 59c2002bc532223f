"""Which claims a few runs support."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

LEAST = 3  # minimum number of runs on each side of a claim
ERRORS = 2.0  # a claim needs a difference of more than this many standard errors
_CHANCE = (0.07, 0.13)  # ten classes: within three points of 10 %


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean.

    Args:
        values: One value per run.

    Returns:
        The standard error, or None for a single run.
    """
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def beats(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether the mean of `ours` is higher by more than two standard errors of the difference.

    Args:
        ours: One accuracy per run.
        theirs: One accuracy per run.

    Returns:
        False if either side has fewer than three runs.
    """
    if min(len(ours), len(theirs)) < LEAST:
        return False
    spread = math.hypot(*(statistics.stdev(values) / math.sqrt(len(values)) for values in (ours, theirs)))
    return statistics.fmean(ours) - statistics.fmean(theirs) > ERRORS * spread


Accuracies = Mapping[str, Mapping[float, Sequence[float]]]  # by name and sparsity, one per seed


def best(candidates: Accuracies, singles: Accuracies, at: Sequence[float]) -> str | None:
    """Return the best candidate among those that beat every single method at every given sparsity.

    A single method with too few runs counts as not beaten.

    Args:
        candidates: Accuracies of the candidates.
        singles: Accuracies of the methods to beat.
        at: The sparsities to compare at.

    Returns:
        The candidate with the highest mean, or None if no candidate beats them all.
    """
    winners = [
        name
        for name, runs in candidates.items()
        if all(beats(runs.get(s, ()), other.get(s, ())) for other in singles.values() for s in at)
    ]
    return max(winners, key=lambda w: sum(statistics.fmean(candidates[w][s]) for s in at), default=None)


def at_chance(accuracy: float) -> bool:
    """Whether an accuracy on ten classes is that of guessing.

    Args:
        accuracy: As a fraction.

    Returns:
        True within three points of 10 %.
    """
    return _CHANCE[0] <= accuracy <= _CHANCE[1]


def percent(values: Sequence[float]) -> str:
    """Format accuracies on ten classes in percent.

    Args:
        values: Fractions, one per run.

    Returns:
        The mean; for several runs, with its standard error and their number.
    """
    mean, error = statistics.fmean(values), standard_error(values)
    text = f"{100 * mean:.2f}" if error is None else f"{100 * mean:.2f} ± {100 * error:.2f} ({len(values)})"
    return f"at chance ({text})" if at_chance(mean) else text


def number(values: Sequence[float], digits: int = 3) -> str:
    """Format the mean and its standard error.

    Args:
        values: One per run.
        digits: Decimal places.

    Returns:
        Such as "0.123 ± 0.004".
    """
    mean, error = statistics.fmean(values), standard_error(values)
    return f"{mean:.{digits}f}" if error is None else f"{mean:.{digits}f} ± {error:.{digits}f}"
