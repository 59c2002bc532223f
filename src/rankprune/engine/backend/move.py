"""Moves of numbers from one place to another, as loops over strides where they are regular and as tables where not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rankprune.engine.graph import strided
from rankprune.engine.graph.strided import Irregular, Nest

from .arena import Buffer
from .native import LANES, Params, fields, kernel_constant

FLOATS, ROWS, INTO_LANES, OUT_OF_LANES = range(4)  # native.MOVES
MOVE_COUNT = 8192  # floats of a move's task, about
COPY, TRANSPOSE, SCALAR = range(3)  # native.INNER
_SPLIT = 64  # of a large inner loop, so that threads can share it
_OUTER = strided.AXES - 2


class Gather(Params):
    _fields_ = fields("int64_t at, out, count, move; Ints from, to; Floats constant")


class Move(Params):
    _fields_ = fields("int64_t at, out, count; Nests nests; Floats constant")


def move(
    call: Callable[..., None], source: Buffer | None, target: Buffer, index: np.ndarray, to: np.ndarray, how: int,
    constant: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Move number index[i] of the source, or of a constant, to place to[i] of the target.

    Args:
        call: `Lowering.call`, which takes the kernel call.
        source: Where the numbers are; None: in the constant.
        target: Where they go.
        index: Places in the source.
        to: Places in the target.
        how: FLOATS, ROWS, INTO_LANES or OUT_OF_LANES.
        constant: The source, if it does not change.
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
    """The kernel's table: first task, inner loop, outer loops of a task, then the nest, outer loops first."""
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
    """Outer loops, the two inner ones, and how those run: copies of rows, transposed blocks, or one by one."""
    rest = sorted(axes, key=lambda a: (abs(a[2]), abs(a[1])))
    none = (1, 0, 0)

    def take(f: int | None, t: int | None) -> tuple[int, int, int] | None:
        found = next((a for a in rest if f in (None, a[1]) and t in (None, a[2])), None)
        if found is not None:
            rest.remove(found)
        return found

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
    """A long loop of the two inner ones in two, so that a task is not too long."""
    size, f, t = inner[0]
    if size * inner[1][0] < 2 * MOVE_COUNT or size < 2 * _SPLIT or len(outer) >= _OUTER:
        return [(nest.source, nest.target, outer, inner, kind)]
    parts, rest = divmod(size, _SPLIT)
    made = [(nest.source, nest.target, [*outer, (parts, _SPLIT * f, _SPLIT * t)], [(_SPLIT, f, t), inner[1]], kind)]
    if rest:
        done = parts * _SPLIT
        made.append((nest.source + done * f, nest.target + done * t, outer, [(rest, f, t), inner[1]], kind))
    return made
