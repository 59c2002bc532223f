"""Lowers linear layers, LayerNorm and means."""

from __future__ import annotations

from functools import partial

import numpy as np

from rankprune.engine.graph.graph import Node, Unsupported

from . import multiply
from .lower_state import Lowering
from .native import LANES, Active, Params, View, fields, kernel_constant

DENSE_FROM = 0.3  # linear layers of a single vector run dense from this density on


class Linear(Params):
    """Parameters of the kernel for a linear layer of one vector."""

    _fields_ = fields(
        "int64_t at, out, res, inputs, outputs; Active activation; Floats values, bias; Shorts columns; Longs starts"
    )


class Norm(Params):
    """Parameters of the LayerNorm kernel."""

    _fields_ = fields("View in, out; int64_t slabs, channels, rows; Floats weight, bias; double eps")


class Mean(Params):
    """Parameters of the kernel for means."""

    _fields_ = fields("View in; int64_t at, out_chan, slabs, channels, rows, width, images")


def linear(state: Lowering, node: Node) -> None:
    """Lower a linear layer; of tokens or eight images it is a 1x1 convolution.

    Args:
        state: The state of the lowering.
        node: The node.
    """
    if state.eight or len(state.graph.shapes[node.inputs[0]]) == 2:
        multiply.linear(state, node)
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
    state.call(params, -(-outputs // kernel_constant("kLinearOutputs")), uses, arrays, values.size + outputs)


def layernorm(state: Lowering, node: Node) -> None:
    """Lower a LayerNorm over the channels of tokens or of an image.

    Args:
        state: The state of the lowering.
        node: The node.

    Raises:
        Unsupported: The value is tokens and the layout is for eight images.
    """
    layout, source = state.input(node.inputs[0])
    if len(layout.shape) == 2 and state.eight:
        raise Unsupported("LayerNorm of tokens needs one image at a time")
    out, target = state.output(node.output)
    weight, bias = node.arrays["weight"], node.arrays["bias"]
    state.call(
        lambda: Norm(
            layout.view(source.at), out.view(target.at), layout.slabs, layout.channels, layout.rows,
            weight.ctypes.data, bias.ctypes.data, node.attrs["eps"],
        ),
        layout.slabs * -(-layout.rows // 2), [source, target], [weight, bias],
    )  # fmt: skip


def mean(state: Lowering, node: Node) -> None:
    """Lower a mean over all pixels of each channel, or over all tokens.

    Args:
        state: The state of the lowering.
        node: The node.

    Raises:
        Unsupported: The value is tokens and the layout is for eight images.
    """
    layout, source = state.input(node.inputs[0])
    shape = state.graph.shapes[node.inputs[0]]
    if len(shape) == 2 and state.eight:
        raise Unsupported("a mean of tokens needs one image at a time")
    out, target = state.output(node.output)
    if len(shape) == 2:  # each row of 8 tokens, or of 8 pixels, is treated as a block of 8 columns
        slabs, slab, rows, width = layout.rows, LANES, 1, shape[0]
    elif layout.joined:
        width = shape[1] * shape[2] // state.images
        slabs, slab, rows = -(-width // LANES), LANES, 1
    else:
        slabs, slab, rows, width = layout.slabs, layout.slab, layout.rows, shape[2]
    step = out.channel if len(out.shape) == 2 else LANES if state.eight else 1

    def params(image: int) -> Mean:
        view = View(source.at + layout.origin + image * width, slab, layout.channel)
        return Mean(view, target.at + image, step, slabs, layout.channels, rows, width, state.eight)

    for image in range(state.images):
        state.call(partial(params, image), layout.channels, [source, target])


HANDLERS = {"linear": linear, "layernorm": layernorm, "mean": mean}
