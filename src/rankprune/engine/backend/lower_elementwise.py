"""Lowers activations, and sums, products and the like of two values or of a value and a constant."""

from __future__ import annotations

import numpy as np

from rankprune.engine.graph.graph import Node, Shape, Unsupported

from .arena import Buffer
from .layout import Layout
from .lower_state import Lowering
from .move import FLOATS, move
from .native import LANES, OPERATIONS, Active, Params, View, fields, kernel_constant


class Binary(Params):
    """Parameters of the elementwise kernel."""

    _fields_ = fields(
        "View a, b, out; int64_t b_row, slabs, channels, rows, operation; Active activation; Floats constant;"
        "int64_t unary"
    )


def binary(state: Lowering, node: Node) -> None:
    """Lower an elementwise operation.

    Args:
        state: The state of the lowering.
        node: The node. Its attribute `broadcast` is the shape of the second operand, 1 along the axes where it is
            repeated; without it both operands have the same shape.
    """
    a_layout, a = state.input(node.inputs[0])
    shape = state.graph.shapes[node.output]
    uses, b, constant, strides = [a], None, None, View(0, 0, 0)
    row = LANES
    out, target = state.output(node.output)
    if len(node.inputs) > 1:
        b_layout, b = state.input(node.inputs[1])
        uses.append(b)
        small = tuple(node.attrs.get("broadcast", shape))
        if small == shape:
            strides = View(b_layout.origin, b_layout.slab, b_layout.channel)
        elif state.eight:
            strides, row = _image_strides(state, b_layout, shape, small)
        else:
            b, strides, row = _spread(state, b_layout, b, out, shape, small)
            uses.append(b)
    elif "constant" in node.arrays:
        state.meter.need(2 * 4 * out.slabs * out.channels * out.rows * LANES)
        constant = _rows(out, shape, node.arrays["constant"])
        strides, row = _row_strides(constant.shape)
    operation = OPERATIONS.index(node.op) if node.op in OPERATIONS else 0

    def params() -> Binary:
        at = 0 if b is None else b.at
        return Binary(
            a_layout.view(a.at), View(at + strides.at, strides.slab, strides.chan), out.view(target.at), row, out.slabs,
            out.channels, out.rows, operation, Active.of(node.attrs),
            None if constant is None else constant.ctypes.data, b is None and constant is None,
        )  # fmt: skip

    tasks = out.slabs * out.channels * -(-out.rows // kernel_constant("kBinaryRows"))
    state.call(params, tasks, [*uses, target], [] if constant is None else [constant])


def _rows(out: Layout, shape: Shape, array: np.ndarray) -> np.ndarray:
    """An array that broadcasts to `shape`, as rows [slab][channel][row][8] of a result, of size 1 where it repeats."""
    if len(shape) > 3:
        array = np.broadcast_to(array, shape).reshape(-1)
        shape = array.shape
    if out.eight:
        lanes = array.transpose(1, 0, 2) if len(shape) == 3 else np.broadcast_to(array, shape).reshape(1, -1, 1)
        rows = np.broadcast_to(lanes[..., None], (*lanes.shape, LANES))
    elif len(shape) == 3:
        wide = _in_lanes(array)
        rows = wide.transpose(2, 0, 1, 3)
    elif len(shape) == 2:
        rows = _in_lanes(array.T)[None]
    else:
        rows = _in_lanes(array)[None, None]
    return np.ascontiguousarray(rows, array.dtype)


def _in_lanes(array: np.ndarray) -> np.ndarray:
    """The last axis in rows of 8, (..., rows, 8); a single number is repeated."""
    size = array.shape[-1]
    if size == 1:
        return np.repeat(array[..., None], LANES, -1)
    padded = np.zeros((*array.shape[:-1], -(-size // LANES) * LANES), array.dtype)
    padded[..., :size] = array
    return padded.reshape(*array.shape[:-1], -1, LANES)


def _row_strides(shape: Shape) -> tuple[View, int]:
    """Strides of contiguous rows [slab][channel][row][8]: 0 along an axis of size 1."""
    slabs, channels, rows, _ = shape
    return (
        View(0, channels * rows * LANES if slabs > 1 else 0, rows * LANES if channels > 1 else 0),
        LANES if rows > 1 else 0,
    )


def _spread(
    state: Lowering, layout: Layout, source: Buffer, out: Layout, shape: Shape, small: Shape
) -> tuple[Buffer, View, int]:
    """Copy a smaller operand into rows in the kernel's order."""
    places = state.table(layout).reshape(small)
    index = _rows(out, shape, places)
    target = state.buffer(index.size)
    move(state.call, source, target, index.reshape(-1), np.arange(index.size, dtype=np.int32), FLOATS)
    return target, *_row_strides(index.shape)


def _image_strides(state: Lowering, layout: Layout, shape: Shape, small: Shape) -> tuple[View, int]:
    """Strides of a smaller operand of eight images, which is read in place because lanes are never mixed."""
    places = state.table(layout).reshape(small)
    if len(shape) != 3:
        raise Unsupported("a broadcast of vectors or tokens needs one image at a time")
    steps = [int(np.diff(places, axis=axis).flat[0]) if small[axis] > 1 else 0 for axis in range(3)]
    grid = np.ogrid[tuple(slice(n) for n in small)]
    if (places != places.flat[0] + sum(i * step for i, step in zip(grid, steps))).any() or steps[2] not in (0, LANES):
        raise Unsupported("an operand that does not lie in even steps")
    return View(int(places.flat[0]), steps[1], steps[0]), steps[2]


HANDLERS = {**dict.fromkeys(OPERATIONS, binary), "activation": binary}
