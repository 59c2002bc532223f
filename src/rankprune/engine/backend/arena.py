"""Shares one piece of memory out among values that are not alive at the same time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ALIGN = 64  # floats


@dataclass(eq=False)
class Buffer:
    """Floats that are needed from step `first` to step `last`."""

    size: int
    first: int
    last: int
    at: int = -1


def place(buffers: list[Buffer]) -> int:
    """Give each buffer a place, the largest first, at the lowest one free for its life; returns the total size."""
    # Of the buffers placed so far, by rising place: first and last step, begin and end.
    placed = np.zeros((4, 0), np.int64)
    total = 0
    for buffer in sorted(buffers, key=lambda b: (-b.size, b.first)):
        size = -(-buffer.size // ALIGN) * ALIGN
        begins, ends = placed[2:, (placed[0] <= buffer.last) & (buffer.first <= placed[1])]
        # The end of all that begins before each of them, and after the last: the room from there on is free.
        free = np.maximum.accumulate(np.concatenate([[0], ends]))
        fits = np.flatnonzero(free[:-1] + size <= begins)
        buffer.at = int(free[fits[0]] if fits.size else free[-1])
        entry = (buffer.first, buffer.last, buffer.at, buffer.at + size)
        placed = np.insert(placed, np.searchsorted(placed[2], buffer.at), entry, axis=1)
        total = max(total, buffer.at + size)
    return total
