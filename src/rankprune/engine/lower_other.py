"""The operators without a window."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from . import lower_window
from .arena import Buffer
from .graph import Node, Unsupported
from .layout import Layout
from .native import LANES, Active, Attention, Linear, Mean, Norm, Softmax, View

if TYPE_CHECKING:
    from .lowering import Lowering

LINEAR_OUTPUTS = 16  # of a task, as in matrix.h
DENSE_FROM = 0.3  # a vector's product is dense from this density on
_FLOATS, _ROWS = 0, 1


def linear(state: Lowering, node: Node) -> None:
    if state.images or len(state.graph.shapes[node.inputs[0]]) == 2:
        lower_window.linear(state, node)
        return
    weight = node.kernel
    outputs, inputs = weight.shape
    _, source = state.input(node.inputs[0])
    _, target = state.output(node.output)
    uses, res = [source, target], None
    if len(node.inputs) > 1:
        _, res = state.input(node.inputs[1])
        uses.append(res)
    if weight.nonzeros > DENSE_FROM * weight.size or inputs > 65536:
        state.meter.need(4 * outputs * (2 * inputs + LANES))
        values = np.zeros((outputs, -(-inputs // LANES) * LANES), np.float32)
        values[:, :inputs] = weight.dense()
        columns, starts = None, np.zeros(1, np.int64)
    else:
        position, values = weight.entries()
        columns = (position % inputs).astype(np.uint16)
        starts = np.searchsorted(position, np.arange(outputs + 1, dtype=np.int64) * inputs).astype(np.int64)
    bias = node.arrays["bias"]

    def params() -> Linear:
        return Linear(
            source.at, target.at, -1 if res is None else res.at, inputs, outputs,
            Active.of(node.attrs), values.ctypes.data, bias.ctypes.data,
            None if columns is None else columns.ctypes.data, starts.ctypes.data,
        )  # fmt: skip

    arrays = [values, bias, starts] + ([] if columns is None else [columns])
    state.call(params, -(-outputs // LINEAR_OUTPUTS), uses, arrays, values.size + outputs)


def layernorm(state: Lowering, node: Node) -> None:
    layout, source = state.input(node.inputs[0])
    if len(layout.shape) != 2 or state.images:
        raise Unsupported("LayerNorm needs tokens, one image at a time")
    out, target = state.output(node.output)
    weight, bias = node.arrays["weight"], node.arrays["bias"]
    state.call(
        lambda: Norm(
            layout.view(source.at), out.view(target.at), layout.channels, layout.rows, weight.ctypes.data,
            bias.ctypes.data, node.attrs["eps"],
        ),
        layout.rows, [source, target], [weight, bias],
    )  # fmt: skip


def softmax(state: Lowering, node: Node) -> None:
    """Over the last axis of tokens or of a vector."""
    layout, source = state.input(node.inputs[0])
    shape = state.graph.shapes[node.output]
    if len(shape) > 2 or (state.images and len(shape) != 1):
        raise Unsupported("softmax needs tokens or a vector")
    out, target = state.output(node.output)
    count = math.prod(shape) if len(shape) == 1 and not state.images else 0
    state.call(
        lambda: Softmax(layout.view(source.at), out.view(target.at), layout.channels, layout.rows, count),
        1 if count else layout.rows,
        [source, target],
    )


def attention(state: Lowering, node: Node) -> None:
    if state.images:
        raise Unsupported("attention needs one image at a time")
    (ql, q), (kl, k), (vl, v) = (state.input(value) for value in node.inputs)
    out, target = state.output(node.output)
    a = node.attrs
    tokens, keys = ql.shape[0], kl.shape[0]
    state.scratch = max(state.scratch, 2 * LANES * keys)

    def shifted(layout: Layout, buffer: Buffer, channels: int) -> View:
        return View(buffer.at + layout.origin + channels * layout.channel, layout.slab, layout.channel)

    state.call(
        lambda: Attention(
            shifted(ql, q, a["q_at"]), shifted(kl, k, a["k_at"]), shifted(vl, v, a["v_at"]), out.view(target.at),
            a["heads"], a["dim"], a["value_dim"], tokens, keys, a["q_head"], a["k_head"], a["v_head"], a["value_dim"],
            a["scale"],
        ),
        a["heads"] * (-(-ql.rows // 2)),
        [q, k, v, target],
        work=a["heads"] * ql.rows * LANES * keys * (a["dim"] + a["value_dim"] + 4),
    )  # fmt: skip


def mean(state: Lowering, node: Node) -> None:
    """Of all pixels of each channel, or of all tokens."""
    layout, source = state.input(node.inputs[0])
    shape = state.graph.shapes[node.inputs[0]]
    if len(shape) == 2 and state.images:
        raise Unsupported("a mean of tokens needs one image at a time")
    _, target = state.output(node.output)
    if len(shape) == 2:  # rows of 8 tokens are columns of one block after another
        slabs, slab, rows, width = layout.rows, LANES, 1, shape[0]
    else:
        slabs, slab, rows, width = layout.slabs, layout.slab, layout.rows, shape[2]
    state.call(
        lambda: Mean(
            View(source.at + layout.origin, slab, layout.channel), target.at, LANES if state.images else 1, slabs,
            layout.channels, rows, width, state.images,
        ),
        layout.channels, [source, target],
    )  # fmt: skip


def gather(state: Lowering, node: Node) -> None:
    """Any reordering: `index` says for each number which number of the input it is, or -1 for the constant's."""
    layout, source = state.input(node.inputs[0])
    out, target = state.output(node.output)
    shape = state.graph.shapes[node.output]
    index = node.arrays["index"].reshape(-1)
    places, to = state.table(layout), state.table(out)
    how = _ROWS if state.images else _FLOATS
    known = index >= 0
    state.move(source, target, places[index[known]], to[known], how)
    if not known.all():
        constant = np.ascontiguousarray(np.broadcast_to(node.arrays["constant"], shape).reshape(-1), np.float32)
        rest = np.flatnonzero(~known).astype(np.int32)
        state.move(None, target, rest, to[~known], how, constant)


def concat(state: Lowering, node: Node) -> None:
    out, target = state.output(node.output)
    shape = state.graph.shapes[node.output]
    places = state.table(out).reshape(shape)
    axis, at = node.attrs["axis"], 0
    for value in node.inputs:
        size = state.graph.shapes[value][axis]
        layout, source = state.input(value)
        part = np.ascontiguousarray(places[(slice(None),) * axis + (slice(at, at + size),)])
        state.move(source, target, state.table(layout), part.reshape(-1), _ROWS if state.images else _FLOATS)
        at += size


HANDLERS = {
    "linear": linear, "layernorm": layernorm, "softmax": softmax,
    "attention": attention, "mean": mean, "gather": gather, "concat": concat,
}  # fmt: skip
