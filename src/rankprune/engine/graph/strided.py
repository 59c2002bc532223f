"""Moves of numbers as few nests of loops: sizes and strides on both sides, instead of two indices for each number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

AXES = 8  # loops of a nest at most
PIECES = 512  # nests of a move at most
_LENGTHS = 12  # different lengths of runs that one level of loops may have
_FAR = 1 << 31  # more than any step between places
_WINDOW = 1 << 14  # differences looked at to find the most frequent one


class Irregular(ValueError):
    """A move that needs a table."""


@dataclass(frozen=True)
class Nest:
    """Number `source + Σ i·f` goes to `target + Σ i·t` for all i below the sizes; axes (size, f, t), inner first."""

    source: int
    target: int
    axes: tuple[tuple[int, int, int], ...]


def describe(source: np.ndarray, target: np.ndarray) -> list[Nest]:
    """Nests that move number source[i] to target[i] for all i, in any order; raises Irregular if they were many."""
    if source.size == 0:
        return []
    found = _fold(source.reshape(-1).astype(np.int64), target.reshape(-1).astype(np.int64), ())
    if len(found) > PIECES or any(len(nest.axes) > AXES for nest in found):
        raise Irregular(f"{len(found)} pieces")
    return found


def _fold(source: np.ndarray, target: np.ndarray, axes: tuple[tuple[int, int, int], ...]) -> list[Nest]:
    """Runs of equal steps become the next loop; the starts of the runs of one length are a shorter sequence."""
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
    found: list[Nest] = []
    for size in sizes.tolist():
        first = starts[lengths == size]
        loop = ((size, (step - t) // _FAR, t),) if size > 1 else ()
        found += _fold(source[first], target[first], axes + loop)
        if len(found) > PIECES:
            raise Irregular("many pieces")
    return found


def _merged(axes: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, int, int], ...]:
    """Loops that continue one another as one."""
    made: list[tuple[int, int, int]] = []
    for size, f, t in axes:
        if made and f == made[-1][0] * made[-1][1] and t == made[-1][0] * made[-1][2]:
            made[-1] = (size * made[-1][0], *made[-1][1:])
        else:
            made.append((size, f, t))
    return tuple(made)


def to_array(nests: list[Nest]) -> np.ndarray:
    """One row for each nest: source, target, and (size, f, t) of every loop."""
    rows = np.zeros((len(nests), 2 + 3 * AXES), np.int64)
    rows[:, 2::3] = 1
    for row, nest in zip(rows, nests):
        row[:2] = nest.source, nest.target
        for i, axis in enumerate(nest.axes):
            row[2 + 3 * i : 5 + 3 * i] = axis
    return rows


def from_array(rows: np.ndarray) -> list[Nest]:
    nests = []
    for row in rows.tolist():
        axes = [tuple(row[i : i + 3]) for i in range(2, 2 + 3 * AXES, 3)]
        nests.append(Nest(row[0], row[1], tuple(a for a in axes if a[0] > 1)))  # type: ignore[misc]
    return nests


def expand(nests: list[Nest], size: int) -> np.ndarray:
    """The index of the source for each of `size` numbers of the target; -1 where no nest says."""
    index = np.full(size, -1, np.int64)
    for nest in nests:
        source, target = np.array([nest.source]), np.array([nest.target])
        for count, f, t in nest.axes:
            source = (np.arange(count)[:, None] * f + source).reshape(-1)
            target = (np.arange(count)[:, None] * t + target).reshape(-1)
        index[target] = source
    return index


def sound(rows: np.ndarray, sources: int, targets: int) -> bool:
    """Whether nests from outside stay within a source and a target of so many numbers, and move no more than that."""
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
