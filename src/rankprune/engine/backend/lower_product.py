"""Lowers products of two computed matrices, softmax, and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rankprune.engine.graph.graph import Node, Unsupported

from .layout import Layout
from .lower_state import Lowering
from .native import LANES, Params, fields, kernel_constant


class Operand(Params):
    """A matrix operand: offset, and strides along groups, heads, rows and depth."""

    _fields_ = fields("int64_t at, group, head, row, depth")


class Product(Params):
    """Parameters of the product kernel."""

    _fields_ = fields("Operand a, b, out; int64_t groups, heads, rows, columns, depth; double scale")


class Softmax(Params):
    """Parameters of the softmax kernel."""

    _fields_ = fields("View in, out; int64_t channels, rows, groups, flat, safe")


class Attention(Params):
    """Parameters of the attention kernel."""

    _fields_ = fields(
        "Operand q, k, v, out; Operand bias; int64_t groups, heads, dim, value_dim, tokens, keys;"
        "int64_t scale_group, scale_head, safe; Floats scale, constant"
    )


def place(layout: Layout, at: int, spec: Sequence[int]) -> Operand:
    """Describe an operand that is a view of tokens [T, C].

    Args:
        layout: Layout of the tokens.
        at: Offset of their buffer.
        spec: First token and channel, then the steps in tokens and channels along each of the four axes.

    Returns:
        Offset and strides.
    """
    token, channel, *steps = spec
    strides = [t + c * layout.channel for t, c in zip(steps[::2], steps[1::2])]
    return Operand(at + layout.origin + token + channel * layout.channel, *strides)


def result(layout: Layout, at: int, heads: int, rows: int, columns: int, stacked: int) -> Operand:
    """Describe the result [tokens, channels] of all groups and heads.

    Args:
        layout: Layout of the result.
        at: Offset of its buffer.
        heads: Number of heads.
        rows: Rows of one product.
        columns: Columns of one product.
        stacked: Groups are stacked along the tokens; otherwise along the channels.

    Returns:
        Offset and strides.
    """
    group = rows if stacked else heads * columns * layout.channel
    return Operand(at + layout.origin, group, columns * layout.channel, 1, layout.channel)


def _single(state: Lowering, what: str) -> None:
    if state.eight:
        raise Unsupported(f"{what} needs one image at a time")


def product(state: Lowering, node: Node) -> None:
    """Lower a product of two computed matrices.

    Args:
        state: The state of the lowering.
        node: The node.

    Raises:
        Unsupported: The layout is for eight images.
    """
    _single(state, "a product of two computed matrices")
    (al, a), (bl, b) = (state.input(value) for value in node.inputs)
    out, target = state.output(node.output)
    n = node.attrs
    groups, heads, rows, columns, depth = n["sizes"]
    state.scratch = max(state.scratch, kernel_constant("kTokens") * columns)
    state.call(
        lambda: Product(
            place(al, a.at, n["a"]), place(bl, b.at, n["b"]),
            result(out, target.at, heads, rows, columns, n["stacked"]), groups, heads, rows, columns, depth, 1.0,
        ),
        groups * heads * -(-rows // kernel_constant("kTokens")), [a, b, target],
        work=groups * heads * (rows + 15) * columns * depth,
    )  # fmt: skip


def softmax(state: Lowering, node: Node) -> None:
    """Lower a softmax over the channels of each group, or over a vector.

    Args:
        state: The state of the lowering.
        node: The node.

    Raises:
        Unsupported: The value is neither tokens nor a vector.
    """
    layout, source = state.input(node.inputs[0])
    shape = state.graph.shapes[node.output]
    groups = node.attrs.get("groups", 1)
    if len(shape) > 2 or (state.eight and (len(shape) != 1 or groups > 1)):
        raise Unsupported("softmax needs tokens or a vector")
    out, target = state.output(node.output)
    count = math.prod(shape) if len(shape) == 1 and not state.eight else 0
    state.call(
        lambda: Softmax(
            layout.view(source.at), out.view(target.at), layout.channels // groups, layout.rows, groups, count,
            node.attrs.get("safe", 0),
        ),
        1 if count else layout.rows * groups, [source, target],
    )  # fmt: skip


def attention(state: Lowering, node: Node) -> None:
    """Lower softmax(scale · q kᵀ + bias) v.

    Args:
        state: The state of the lowering.
        node: The node.

    Raises:
        Unsupported: The layout is for eight images.
    """
    _single(state, "attention")
    (ql, q), (kl, k), (vl, v) = (state.input(value) for value in node.inputs[:3])
    out, target = state.output(node.output)
    n = node.attrs
    groups, heads, tokens, keys, dim, value_dim = n["sizes"]
    state.scratch = max(state.scratch, kernel_constant("kTokens") * (keys + value_dim))
    scale = np.ascontiguousarray(node.arrays["scale"])
    uses, arrays, constant = [q, k, v, target], [scale], None
    if "bias" in node.arrays:  # [group][head][key][token]
        table = node.arrays["bias"]
        constant = np.concatenate([table.reshape(-1), np.zeros(LANES, np.float32)])
        arrays.append(constant)
        sizes, steps = table.shape, np.cumprod([1, *table.shape[:0:-1]])[::-1]
        group, head, key, token = (int(step) if n > 1 else 0 for n, step in zip(sizes, steps))
    elif len(node.inputs) > 3:
        bl, mask = state.input(node.inputs[3])
        uses.append(mask)
        key, token = (bl.channel, 1) if len(bl.shape) == 2 else (1, 0)
        group, head = heads * keys * key, keys * key

    def bias() -> Operand:
        if constant is not None:
            return Operand(0, group, head, token, key)
        if len(node.inputs) > 3:
            return Operand(mask.at + bl.origin, group, head, token, key)
        return Operand(-1, 0, 0, 0, 0)

    scale_group, scale_head = (1 if n > 1 else 0 for n in scale.shape)
    state.call(
        lambda: Attention(
            place(ql, q.at, n["q"]), place(kl, k.at, n["k"]), place(vl, v.at, n["v"]),
            result(out, target.at, heads, tokens, value_dim, n["stacked"]), bias(), groups, heads, dim, value_dim,
            tokens, keys, scale_group * scale.shape[1], scale_head, n.get("safe", 0), scale.ctypes.data,
            None if constant is None else constant.ctypes.data,
        ),
        groups * heads * -(-tokens // kernel_constant("kTokens")), uses, arrays,
        groups * heads * (tokens + 15) * keys * (dim + value_dim + 4),
    )  # fmt: skip


HANDLERS = {"product": product, "softmax": softmax, "attention": attention}
