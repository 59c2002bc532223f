"""Which kernel shape to take for a layer, and which to try: from its density and extents alone."""

from __future__ import annotations

import numpy as np

from rankprune.engine.graph.graph import Weight

from .packing import TALLEST, Choice

L1_BYTES = 32 << 10
ROW_BYTES = 32


def default_choice(weight: Weight, groups: int, taps: np.ndarray, rows: int, slabs: int, threads: int) -> Choice:
    """The choice without measuring; a function of its arguments only."""
    density = weight.nonzeros / max(weight.size, 1)
    width = 4 if density > 0.55 else 1
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    while outputs % width:
        width //= 2
    parts = -(-rows // TALLEST[width])
    height = -(-rows // parts)
    block = _block(density, inputs, taps.size, height) if groups == 1 else 0
    return Choice(width, height, block, split(slabs * parts, threads, weight.shape[0]), density > 0.9)


def split(tasks: int, threads: int, outputs: int) -> int:
    """Groups of output channels, so that every thread has several tasks."""
    groups = 1
    while threads > 1 and tasks * groups < 4 * threads and groups * 8 <= outputs:
        groups *= 2
    return groups


def _block(density: float, inputs: int, window: int, height: int) -> int:
    """Blocks that fit the nearest cache, unless their lists would be shorter than the sums they carry over."""
    per_channel = ROW_BYTES * height * (1 if window == 1 else 3)
    block = max(16, L1_BYTES // per_channel)
    shortest = 12 / max(density * window, 1e-9)
    block = int(max(block, shortest))
    return 0 if block * 3 > inputs * 2 else block


def candidates(weight: Weight, groups: int, rows: int, slabs: int, threads: int) -> list[Choice]:
    """What the planner measures for a layer, the dense way included where it can win."""
    density = weight.nonzeros / max(weight.size, 1)
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    window = int(np.prod(weight.shape[2:])) if len(weight.shape) > 2 else 1
    shapes: list[tuple[int, int, bool]] = []
    if density < 0.8:
        shapes += [(1, height, False) for height in heights(rows)]
    if density > 0.25 and outputs % 2 == 0:
        shapes.append((2, 6, False))
    if density > 0.35 and outputs % 4 == 0:
        shapes.append((4, 3, False))
    if density > 0.3:
        shapes.append((4 if outputs % 4 == 0 else 2 if outputs % 2 == 0 else 1, 3 if outputs % 4 == 0 else 6, True))
    blocks = [0]
    if groups == 1:
        sizes = (32, 64, 128, 256) if window == 1 else (16, 32, 64)
        blocks += [b for b in sizes if b < inputs and b * window * density >= 4]
    made = []
    for width, height, dense in shapes:
        parts = -(-rows // min(height, rows))
        base = split(slabs * parts, threads, weight.shape[0])
        for block in blocks:
            made += [Choice(width, -(-rows // parts), block, g, dense) for g in sorted({base, max(1, base // 2)})]
    return list(dict.fromkeys(made))


def heights(rows: int) -> list[int]:
    """Rows at once, each splitting the whole evenly."""
    tallest = TALLEST[1]
    parts = -(-rows // tallest)
    found = [-(-rows // p) for p in (parts, parts + 1, 2 * parts)]
    return list(dict.fromkeys(h for h in found if h >= min(4, rows)))
