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
    # (4, placed): first step, last step, begin and end of the buffers placed so far, by offset.
    placed = np.zeros((4, 0), np.int64)
    total = 0
    for buffer in sorted(buffers, key=lambda b: (-b.size, b.first)):
        size = -(-buffer.size // ALIGN) * ALIGN
        begins, ends = placed[2:, (placed[0] <= buffer.last) & (buffer.first <= placed[1])]
        # free[i]: the end of all overlapping buffers before the i-th; the gap up to begins[i] is free.
        free = np.maximum.accumulate(np.concatenate([[0], ends]))
        fits = np.flatnonzero(free[:-1] + size <= begins)
        buffer.at = int(free[fits[0]] if fits.size else free[-1])
        entry = (buffer.first, buffer.last, buffer.at, buffer.at + size)
        placed = np.insert(placed, np.searchsorted(placed[2], buffer.at), entry, axis=1)
        total = max(total, buffer.at + size)
    return total
