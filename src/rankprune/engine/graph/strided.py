"""Describes moves of numbers by a few nests of loops, instead of two indices per number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

AXES = 8  # maximum number of loops in a nest
PIECES = 512  # maximum number of nests in a move
_LENGTHS = 12  # maximum number of different run lengths on one level
_FAR = 1 << 31  # larger than any step between offsets
_WINDOW = 1 << 14  # number of steps that are sampled to find the most frequent one


class Irregular(ValueError):
    """A move that needs a table."""


@dataclass(frozen=True)
class Nest:
    """A nest of loops: number `source + Σ i·f` moves to `target + Σ i·t` for all i below the sizes.

    Attributes:
        source: First offset in the source.
        target: First offset in the target.
        axes: (size, f, t) of each loop, innermost first.
    """

    source: int
    target: int
    axes: tuple[tuple[int, int, int], ...]


def describe(source: np.ndarray, target: np.ndarray) -> list[Nest]:
    """Find nests that move number source[i] to target[i] for all i, in any order.

    Args:
        source: Offsets in the source.
        target: Offsets in the target.

    Returns:
        The nests.

    Raises:
        Irregular: There would be too many.
    """
    if source.size == 0:
        return []
    nests = _fold(source.reshape(-1).astype(np.int64), target.reshape(-1).astype(np.int64), ())
    if len(nests) > PIECES or any(len(nest.axes) > AXES for nest in nests):
        raise Irregular(f"{len(nests)} pieces")
    return nests


def _fold(source: np.ndarray, target: np.ndarray, axes: tuple[tuple[int, int, int], ...]) -> list[Nest]:
    """Turn runs of equal steps into a loop, and fold the starts of the runs of each length recursively."""
    if source.size == 1:
        return [Nest(int(source[0]), int(target[0]), _merged(axes))]
    steps = np.diff(source) * _FAR + np.diff(target)  # both in one number
    middle = max(0, steps.size // 2 - _WINDOW // 2)
    kinds, counts = np.unique(np.concatenate([steps[:_WINDOW], steps[middle : middle + _WINDOW]]), return_counts=True)
    likely = kinds[counts == counts.max()]
    down = (likely + _FAR // 2) % _FAR - _FAR // 2
    step, t = (int(a[np.argmin(np.abs(down))]) for a in (likely, down))
    starts = np.flatnonzero(np.concatenate([[True], steps != step]))
    lengths = np.diff(np.append(starts, source.size))
    sizes = np.unique(lengths)
    if sizes.size > _LENGTHS or 4 * starts.size > 3 * source.size + 64 or len(axes) > 2 * AXES:
        raise Irregular("runs of many lengths")
    nests: list[Nest] = []
    for size in sizes.tolist():
        first = starts[lengths == size]
        loop = ((size, (step - t) // _FAR, t),) if size > 1 else ()
        nests += _fold(source[first], target[first], axes + loop)
        if len(nests) > PIECES:
            raise Irregular("many pieces")
    return nests


def _merged(axes: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, int, int], ...]:
    """Merge loops of which one continues the other."""
    merged: list[tuple[int, int, int]] = []
    for size, f, t in axes:
        if merged and f == merged[-1][0] * merged[-1][1] and t == merged[-1][0] * merged[-1][2]:
            merged[-1] = (size * merged[-1][0], *merged[-1][1:])
        else:
            merged.append((size, f, t))
    return tuple(merged)


def to_array(nests: list[Nest]) -> np.ndarray:
    """Convert nests to an array.

    Args:
        nests: The nests.

    Returns:
        int64, (nests, 2 + 3 * AXES): source, target, and (size, f, t) of every loop.
    """
    rows = np.zeros((len(nests), 2 + 3 * AXES), np.int64)
    rows[:, 2::3] = 1
    for row, nest in zip(rows, nests):
        row[:2] = nest.source, nest.target
        for i, axis in enumerate(nest.axes):
            row[2 + 3 * i : 5 + 3 * i] = axis
    return rows


def from_array(rows: np.ndarray) -> list[Nest]:
    """Convert an array to nests.

    Args:
        rows: What `to_array` returned.

    Returns:
        The nests.
    """
    nests = []
    for row in rows.tolist():
        axes = [tuple(row[i : i + 3]) for i in range(2, 2 + 3 * AXES, 3)]
        nests.append(Nest(row[0], row[1], tuple(a for a in axes if a[0] > 1)))  # type: ignore[misc]
    return nests


def expand(nests: list[Nest], size: int) -> np.ndarray:
    """Convert nests to a table.

    Args:
        nests: The nests.
        size: Numbers of the target.

    Returns:
        The offset in the source of each number of the target; -1 where no nest writes.
    """
    index = np.full(size, -1, np.int64)
    for nest in nests:
        source, target = np.array([nest.source]), np.array([nest.target])
        for count, f, t in nest.axes:
            source = (np.arange(count)[:, None] * f + source).reshape(-1)
            target = (np.arange(count)[:, None] * t + target).reshape(-1)
        index[target] = source
    return index


def sound(rows: np.ndarray, sources: int, targets: int) -> bool:
    """Whether nests from a file stay within source and target, and move no more numbers than the target has.

    Args:
        rows: The nests as an array.
        sources: Numbers of the source.
        targets: Numbers of the target.

    Returns:
        True if they do.
    """
    if rows.ndim != 2 or rows.shape[1] != 2 + 3 * AXES or rows.shape[0] > PIECES:
        return False
    moved = 0
    for row in rows.tolist():  # Python's integers do not overflow
        total, ranges = 1, [[row[0], row[0]], [row[1], row[1]]]
        for i in range(2, len(row), 3):
            if not 1 <= row[i] <= targets:
                return False
            total *= row[i]
            for side, bounds in enumerate(ranges):
                reach = (row[i] - 1) * row[i + 1 + side]
                bounds[0], bounds[1] = bounds[0] + min(0, reach), bounds[1] + max(0, reach)
        moved += total
        if moved > targets or any(low < 0 or high >= n for (low, high), n in zip(ranges, (sources, targets))):
            return False
    return True
