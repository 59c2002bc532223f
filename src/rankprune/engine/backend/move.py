"""Moves numbers from one layout to another: loops over strides if the move is regular, tables if not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rankprune.engine.graph import strided
from rankprune.engine.graph.strided import Irregular, Nest

from .arena import Buffer
from .native import LANES, Params, fields, kernel_constant

FLOATS, ROWS, INTO_LANES, OUT_OF_LANES = range(4)  # native.MOVES
MOVE_COUNT = 8192  # approximate floats per task
COPY, TRANSPOSE, SCALAR = range(3)  # native.INNER
_SPLIT = 64  # long inner loops are split into parts of this size, so that threads can share them
_OUTER = strided.AXES - 2


class Gather(Params):
    """Parameters of a move by tables."""

    _fields_ = fields("int64_t at, out, count, move; Ints from, to; Floats constant")


class Move(Params):
    """Parameters of a move by loops."""

    _fields_ = fields("int64_t at, out, count; Nests nests; Floats constant")


def move(
    call: Callable[..., None], source: Buffer | None, target: Buffer, index: np.ndarray, to: np.ndarray, how: int,
    constant: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Move number index[i] of the source, or of a constant, to place to[i] of the target.

    Args:
        call: `Lowering.call`, which appends a kernel call.
        source: Buffer to read from; None to read from the constant.
        target: Buffer to write to.
        index: Offsets in the source.
        to: Offsets in the target.
        how: FLOATS moves single numbers, ROWS rows of 8; INTO_LANES and OUT_OF_LANES convert eight images to and from
            the layout with one image per lane.
        constant: The source, if it is a constant.
    """
    if index.size == 0:
        return
    uses = [target] if source is None else [source, target]
    lanes = LANES if how != FLOATS else 1
    arrays = [] if constant is None else [constant]

    def at(buffer: Buffer | None) -> int:
        return 0 if buffer is None else buffer.at

    def address() -> int | None:
        return None if constant is None else constant.ctypes.data

    try:
        table, tasks = _plan(strided.describe(index, to), index.size, how, constant is not None)
    except Irregular:
        call(
            lambda: Gather(at(source), target.at, index.size, how, index.ctypes.data, to.ctypes.data, address()),
            -(-index.size // kernel_constant("kGatherCount")), uses, [index, to, *arrays], lanes * index.size,
        )  # fmt: skip
        return
    call(
        lambda: Move(at(source), target.at, len(table), table.ctypes.data, address()), tasks, uses, [table, *arrays],
        lanes * index.size,
    )  # fmt: skip


def _plan(nests: list[Nest], count: int, how: int, constant: bool) -> tuple[np.ndarray, int]:
    """The kernel's table, one row per nest: first task, kind of inner loops, chunk, offsets, then the loops."""
    rows, tasks = [], 0
    for nest in nests:
        axes = list(nest.axes)
        if how == ROWS:
            axes = [(LANES, 0 if constant else 1, 1), *axes]
        elif how == INTO_LANES:
            axes.append((LANES, count, 1))
        elif how == OUT_OF_LANES:
            axes.append((LANES, 1, count))
        for source, target, outer, inner, kind in _split(nest, *_order(axes)):
            work, total = inner[0][0] * inner[1][0], 1
            for size, _, _ in outer:
                total *= size
            chunk = max(1, MOVE_COUNT // work)
            loops = [(1, 0, 0)] * (_OUTER - len(outer)) + outer + inner
            if len(loops) > strided.AXES:
                raise Irregular("a nest that is too deep")
            rows.append([tasks, kind, chunk, source, target, *(n for loop in loops for n in loop)])
            tasks += -(-total // chunk)
    return np.array(rows, np.int64), tasks


Axes = list[tuple[int, int, int]]


def _order(axes: Axes) -> tuple[Axes, Axes, int]:
    """Outer loops, two inner loops, and how these run: copying rows, transposing blocks, or number by number."""
    rest = sorted(axes, key=lambda a: (abs(a[2]), abs(a[1])))
    none = (1, 0, 0)

    def take(f: int | None, t: int | None) -> tuple[int, int, int] | None:
        axis = next((a for a in rest if f in (None, a[1]) and t in (None, a[2])), None)
        if axis is not None:
            rest.remove(axis)
        return axis

    row = take(1, 1)
    if row is not None:
        inner, kind = [rest.pop(0) if rest else none, row], COPY
    else:
        column = take(1, None)
        row = take(None, 1) if column is not None else None
        if column is not None and row is not None and column[0] >= 4 and row[0] >= 4:
            inner, kind = [column, row], TRANSPOSE
        else:
            rest = sorted(axes, key=lambda a: (abs(a[2]), abs(a[1])))
            first = rest.pop(0) if rest else none
            inner, kind = [rest.pop(0) if rest else none, first], SCALAR
    return rest[::-1], inner, kind


def _split(nest: Nest, outer: Axes, inner: Axes, kind: int) -> list[tuple[int, int, Axes, Axes, int]]:
    """Split a long inner loop into parts, so that its tasks do not become too long."""
    size, f, t = inner[0]
    if size * inner[1][0] < 2 * MOVE_COUNT or size < 2 * _SPLIT or len(outer) >= _OUTER:
        return [(nest.source, nest.target, outer, inner, kind)]
    parts, rest = divmod(size, _SPLIT)
    pieces = [(nest.source, nest.target, [*outer, (parts, _SPLIT * f, _SPLIT * t)], [(_SPLIT, f, t), inner[1]], kind)]
    if rest:
        done = parts * _SPLIT
        pieces.append((nest.source + done * f, nest.target + done * t, outer, [(rest, f, t), inner[1]], kind))
    return pieces
