"""Which kernel shape to take for a layer, and which to try: from its density and extents alone."""

from __future__ import annotations

import numpy as np

from rankprune.engine.graph.graph import Weight

from .packing import TALLEST, Choice

L1_BYTES = 32 << 10
ROW_BYTES = 32


def default_choice(weight: Weight, groups: int, taps: np.ndarray, rows: int, lanes: int) -> Choice:
    """The choice without measuring; a function of its arguments only. `lanes`: of the widest vectors."""
    density = weight.nonzeros / max(weight.size, 1)
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    lanes = lanes if rows > 1 else 8
    width = 4 if density > (0.8 if lanes == 16 else 0.55) else 1
    while outputs % width or width not in TALLEST[lanes]:
        width //= 2
    height = TALLEST[lanes][width]
    if lanes == 16 and width == 1:
        # As many rows as keep the inputs of a list near: more of them cost less than misses do.
        height = max(4, min(8, 48 * 1024 // (inputs * _row_bytes(taps.size)) // 2 * 2))
    height = even(rows, height, lanes)
    block = _block(density, inputs, taps.size, height, lanes) if groups == 1 else 0
    return Choice(width, height, block, density > 0.9, lanes)


def even(rows: int, height: int, lanes: int) -> int:
    """The height nearest below that splits the rows into parts of the same size, in whole vectors."""
    unit = lanes // 8
    units = -(-rows // unit)
    parts = -(-units // max(1, height // unit))
    return -(-units // parts) * unit


def split(tasks: int, threads: int, outputs: int) -> int:
    """Groups of output channels, so that every thread has as much to do: the same number of tasks, or many."""
    groups = 1
    while threads > 1 and tasks * groups < 8 * threads and tasks * groups % threads and groups * 8 <= outputs:
        groups *= 2
    return groups


def _row_bytes(window: int) -> int:
    """Of one row of an input channel, in all the shifted copies that a window reads."""
    return ROW_BYTES * (1 if window == 1 else 3)


def _block(density: float, inputs: int, window: int, height: int, lanes: int) -> int:
    """Blocks that fit the nearest cache, unless their lists would be shorter than the sums they carry over."""
    near = L1_BYTES * (2 if lanes == 16 else 1)
    block = max(16, near // (height * _row_bytes(window)))
    shortest = 12 / max(density * window, 1e-9)
    block = int(max(block, shortest))
    return 0 if block * 3 > inputs * 2 else block


def candidates(weight: Weight, groups: int, rows: int, lanes: int) -> list[Choice]:
    """What the planner measures for a layer, the dense way included where it can win."""
    density = weight.nonzeros / max(weight.size, 1)
    window = int(np.prod(weight.shape[2:])) if len(weight.shape) > 2 else 1
    found = _narrow(weight, groups, rows, density, window) if lanes == 8 or window > 1 else []
    if lanes == 16 and rows > 1:
        found += _wide(weight, groups, rows, density, window)
    return list(dict.fromkeys(found))


def _narrow(weight: Weight, groups: int, rows: int, density: float, window: int) -> list[Choice]:
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
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
    return [Choice(width, even(rows, height, 8), block, dense) for width, height, dense in shapes for block in blocks]


def _wide(weight: Weight, groups: int, rows: int, density: float, window: int) -> list[Choice]:
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    shapes: list[tuple[int, int, bool]] = []
    if density < 0.9:
        shapes += [(1, height, False) for height in (4, 6, 8, 14, 16)]
    if density > 0.5 and outputs % 4 == 0:
        shapes += [(4, height, True) for height in (8, 10, 12)]
    made = []
    for width, height, dense in shapes:
        tall = even(rows, height, 16)
        blocks = {0}
        if groups == 1:
            sizes = (size // (tall * _row_bytes(window)) // 8 * 8 for size in (L1_BYTES, 2 * L1_BYTES))
            blocks |= {b for b in sizes if 0 < b < inputs and b * window * density >= 4}
        made += [Choice(width, tall, block, dense, 16) for block in sorted(blocks)]
    return made


def heights(rows: int) -> list[int]:
    """Rows at once, each splitting the whole evenly."""
    tallest = TALLEST[8][1]
    parts = -(-rows // tallest)
    found = [-(-rows // p) for p in (parts, parts + 1, 2 * parts)]
    return list(dict.fromkeys(h for h in found if h >= min(4, rows)))
