"""Chooses a kernel for a layer, or candidates to measure, from its density and shapes."""

from __future__ import annotations

import math

from rankprune.engine.graph.graph import Weight

from .choice import JIT_TALLEST, TALLEST, Choice, jit_width

L1_BYTES = 32 << 10
ROW_BYTES = 32
JIT_SMALLEST = 64  # pixels: code is read once per 16 of them, so it pays where there are several times as many
JIT_DENSEST = 0.6  # code takes 7 bytes per weight beside its value, so dense layers read less memory without it
JIT_BYTES = 11  # of code and value, per weight
MOST_UNEVEN = 1.15  # the largest part by the mean part


def default_choice(weight: Weight, groups: int, rows: int, lanes: int, jit: bool) -> Choice:
    """Return the kernel of a layer without measuring; it depends only on the arguments.

    Args:
        weight: The weight.
        groups: Groups of the convolution.
        rows: Rows of a slab of the result.
        lanes: Floats of the widest vectors.
        jit: Code may be generated.

    Returns:
        The kernel.
    """
    window = window_size(weight)
    density = weight.nonzeros / max(weight.size, 1)
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    lanes = lanes if rows > 1 else 8
    if jit and lanes == 16 and groups == 1 and density < JIT_DENSEST and outputs > 4 and rows * 8 >= JIT_SMALLEST:
        return Choice(jit_width(outputs), even(rows, JIT_TALLEST, 16), lanes=16)
    width = 4 if density > (0.8 if lanes == 16 else 0.55) else 1
    while outputs % width or width not in TALLEST[lanes]:
        width //= 2
    height = TALLEST[lanes][width]
    if lanes == 16 and width == 1:
        # Only as many rows as keep the inputs of a list in the L1 cache: reading lists again is cheaper than misses.
        height = max(4, min(8, 48 * 1024 // (inputs * _row_bytes(window)) // 2 * 2))
    height = even(rows, height, lanes)
    block = _block(density, inputs, window, height, lanes) if groups == 1 else 0
    return Choice(width, height, block, density > 0.9, lanes)


def even(rows: int, height: int, lanes: int) -> int:
    """Return the largest height up to a given one that splits the rows into equal parts, in whole vectors.

    Args:
        rows: Rows to split.
        height: Maximum height.
        lanes: Floats per vector.

    Returns:
        The height.
    """
    unit = lanes // 8
    units = -(-rows // unit)
    parts = -(-units // max(1, height // unit))
    return -(-units // parts) * unit


def split(tasks: int, threads: int, outputs: int) -> int:
    """Return into how many groups to split the output channels, so that all threads have equal work.

    Args:
        tasks: Tasks of one group.
        threads: Number of threads.
        outputs: Chunks of output channels.

    Returns:
        Number of groups.
    """
    groups = 1
    while threads > 1 and tasks * groups < 8 * threads and tasks * groups % threads and groups * 8 <= outputs:
        groups *= 2
    return groups


def shared_height(height: int, rows: int, slabs: int, threads: int, nonzeros: int, inputs: int) -> int:
    """Return a height of generated code with which the threads have equal numbers of tasks. It changes no sum.

    Args:
        height: The height for one thread.
        rows: Rows of a slab of the result.
        slabs: Slabs of the result.
        threads: Number of threads.
        nonzeros: Nonzeros of the weight.
        inputs: Input channels.

    Returns:
        At most the given height; the same if the rows cannot be divided well, or if it is better that threads divide
        the output channels: each thread then reads its own part of the code, but inputs that others have written.
    """
    vectors, parts = -(-rows // 2), -(-rows // height)
    tasks = slabs * parts
    if tasks % threads == 0 or tasks >= 8 * threads:
        return height
    if tasks < threads and nonzeros * JIT_BYTES > inputs * rows * ROW_BYTES:
        return height
    for more in range(parts + 1, min(parts + threads, vectors) + 1):
        tallest = -(-vectors // more)
        if slabs * more % threads == 0 and tallest * more <= MOST_UNEVEN * vectors and -(-vectors // tallest) == more:
            return 2 * tallest
    return height


def window_size(weight: Weight) -> int:
    """Return the number of taps of a window; 1 for a linear layer.

    Args:
        weight: The weight.

    Returns:
        The number.
    """
    return math.prod(weight.shape[2:])


def _row_bytes(window: int) -> int:
    """Bytes of one row of an input channel, in all shifted copies that a window reads."""
    return ROW_BYTES * (1 if window == 1 else 3)


def _block(density: float, inputs: int, window: int, height: int, lanes: int) -> int:
    """Input channels per block, so that a block fits in the L1 cache; 0 if its lists would become too short."""
    near = L1_BYTES * (2 if lanes == 16 else 1)
    block = max(16, near // (height * _row_bytes(window)))
    shortest = 12 / max(density * window, 1e-9)
    block = int(max(block, shortest))
    return 0 if block * 3 > inputs * 2 else block


def candidates(weight: Weight, groups: int, rows: int, lanes: int, jit: bool) -> list[Choice]:
    """Return the kernels to measure for a layer, including dense ones if they may be fastest.

    Args:
        weight: The weight.
        groups: Groups of the convolution.
        rows: Rows of a slab of the result.
        lanes: Floats of the widest vectors.
        jit: Code may be generated.

    Returns:
        The kernels.
    """
    density = weight.nonzeros / max(weight.size, 1)
    window = window_size(weight)
    choices = _narrow(weight, groups, rows, density, window) if lanes == 8 or window > 1 else []
    if lanes == 16 and rows > 1:
        choices += _wide(weight, groups, rows, density, window)
        if jit and groups == 1 and density < JIT_DENSEST:
            width = jit_width(weight.shape[0])
            choices += [Choice(width, even(rows, height, 16), lanes=16) for height in (2, 8, 16, 32, JIT_TALLEST)]
    return list(dict.fromkeys(choices))


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
        shapes += [(1, height, False) for height in (4, 6, 8, 10, 12, 14, 16)]
    if density > 0.5 and outputs % 4 == 0:
        shapes += [(4, height, True) for height in (8, 10, 12)]
    choices = []
    for width, height, dense in shapes:
        tall = even(rows, height, 16)
        blocks = {0}
        if groups == 1:
            sizes = (size // (tall * _row_bytes(window)) // 8 * 8 for size in (L1_BYTES, 2 * L1_BYTES))
            blocks |= {b for b in sizes if 0 < b < inputs and b * window * density >= 4}
        choices += [Choice(width, tall, block, dense, 16) for block in sorted(blocks)]
    return choices


def heights(rows: int) -> list[int]:
    """Return heights that split the rows evenly.

    Args:
        rows: Rows to split.

    Returns:
        The heights.
    """
    tallest = TALLEST[8][1]
    parts = -(-rows // tallest)
    even_heights = [-(-rows // p) for p in (parts, parts + 1, 2 * parts)]
    return list(dict.fromkeys(h for h in even_heights if h >= min(4, rows)))
