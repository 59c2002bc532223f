"""Shares one piece of memory out among values that are not alive at the same time."""

from __future__ import annotations

from dataclasses import dataclass

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
    placed: list[Buffer] = []
    total = 0
    for buffer in sorted(buffers, key=lambda b: (-b.size, b.first)):
        size = -(-buffer.size // ALIGN) * ALIGN
        at = 0
        for other in sorted(
            (o for o in placed if o.first <= buffer.last and buffer.first <= o.last), key=lambda o: o.at
        ):
            if at + size <= other.at:
                break
            at = max(at, other.at + -(-other.size // ALIGN) * ALIGN)
        buffer.at = at
        placed.append(buffer)
        total = max(total, at + size)
    return total
