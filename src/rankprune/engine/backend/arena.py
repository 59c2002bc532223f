"""Memory planner: values that are not alive at the same time share memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ALIGN = 64  # floats; buffers start at multiples of it


@dataclass(eq=False)
class Buffer:
    """Memory that is needed from step `first` to step `last`.

    Attributes:
        size: Floats.
        first: First step.
        last: Last step.
        at: Offset in the arena; -1 until `place` sets it.
    """

    size: int
    first: int
    last: int
    at: int = -1


def place(buffers: list[Buffer]) -> int:
    """Assign an offset to each buffer: the largest first, each at the lowest offset that is free during its lifetime.

    Args:
        buffers: The buffers, whose `at` is set.

    Returns:
        Floats of the arena.
    """
    # (4, buffers): first step, last step, begin and end of the buffers placed so far, by begin.
    placed = np.zeros((4, len(buffers)), np.int64)
    total = 0
    for count, buffer in enumerate(sorted(buffers, key=lambda b: (-b.size, b.first))):
        size = -(-buffer.size // ALIGN) * ALIGN
        first, last, begin, end = placed[:, :count]
        alive = (first <= buffer.last) & (buffer.first <= last)
        # free[i]: the end of all overlapping buffers before the i-th; the gap up to its begin is free.
        free = np.zeros(1 + np.count_nonzero(alive), np.int64)
        np.maximum.accumulate(end[alive], out=free[1:])
        fits = np.flatnonzero(free[:-1] + size <= begin[alive])
        buffer.at = int(free[fits[0] if fits.size else -1])
        at = int(begin.searchsorted(buffer.at))
        placed[:, at + 1 : count + 1] = placed[:, at:count].copy()
        placed[:, at] = buffer.first, buffer.last, buffer.at, buffer.at + size
        total = max(total, buffer.at + size)
    return total
