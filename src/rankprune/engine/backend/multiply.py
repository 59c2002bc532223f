"""Lowers the multiplication of a value by a sparse weight: by kernels that read lists, or by generated code."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rankprune.engine.graph.graph import Node, Unsupported

from .arena import Buffer
from .choice import Choice, fit
from .layout import Layout
from .lower_state import Generated, Lowering, Source
from .native import LANES, Active, Params, View, fields
from .packing import Packed, packing_bytes
from .packs import PackedWeight
from .shape_choice import default_choice, shared_height, split


class Conv(Params):
    """Parameters of the convolution kernel."""

    _fields_ = fields(
        "View in, out, res; int64_t columns; int64_t step; int64_t slabs, rows, channels; Active activation;"
        "int64_t width, height, lanes; int64_t groups, blocks; int64_t by_group;"
        "Floats values, bias; Shorts offsets; Longs starts, base; Longs splits"
    )


class JitConv(Params):
    """Parameters of a convolution with generated code."""

    _fields_ = fields(
        "View in, out, res; int64_t columns, slabs, rows, channels; Active activation;"
        "int64_t height, groups, by_group; Bytes code; Shorts masks; Longs splits; Bytes next; int64_t next_chunks"
    )


@dataclass(frozen=True)
class _Call:
    """A layer whose kernel, places and tasks are known; the attributes are those of the kernels' parameters."""

    node: Node
    source: Source
    out: Layout
    target: Buffer
    res: tuple[Layout, Buffer] | None
    choice: Choice
    packed: Packed
    splits: np.ndarray
    columns: int
    slabs: int
    rows: int
    outputs: int
    shares: int
    by_group: bool
    tasks: int

    def views(self) -> tuple[View, View, View]:
        """Input, result and residual, once the buffers have their offsets."""
        view = self.source.view
        skip = View(-1, 0, 0) if self.res is None else self.res[0].view(self.res[1].at)
        return View(self.source.buffer.at + view.at, view.slab, view.chan), self.out.view(self.target.at), skip

    @property
    def uses(self) -> list[Buffer]:
        """Buffers that it reads or writes."""
        return [self.source.buffer, self.target, *([] if self.res is None else [self.res[1]])]


def linear(state: Lowering, node: Node) -> None:
    """Lower a linear layer over tokens, or over eight images.

    Args:
        state: The state of the lowering.
        node: The node.

    Raises:
        Unsupported: The value is tokens and the layout is for eight images.
    """
    layout, _ = state.input(node.inputs[0])
    if len(layout.shape) != (1 if state.eight else 2):
        raise Unsupported("a linear layer over tokens needs one image at a time")
    multiply(state, node, as_it_lies(state, node))


def as_it_lies(state: Lowering, node: Node) -> Source:
    """Return the input of a layer that reads each pixel or token where its result goes.

    Args:
        state: The state of the lowering.
        node: The layer.

    Returns:
        The input.
    """
    layout, buffer = state.input(node.inputs[0])
    return Source(buffer, View(layout.origin, layout.slab, layout.channel))


def choose(state: Lowering, node: Node, rows: int, channel: int, step: int) -> Choice:
    """Return the kernel of a layer: the one that was measured to be best, or the default, made valid.

    Args:
        state: The state of the lowering.
        node: The layer.
        rows: Rows of a slab of its result.
        channel: Floats between two input channels.
        step: Floats between the inputs of two rows of the result.

    Returns:
        The kernel.
    """
    weight, groups = node.kernel, node.attrs.get("groups", 1)
    choice, lanes = state.choices.get(state.node), state.lanes if step == LANES else LANES
    if choice is None:
        choice = default_choice(weight, groups, rows, lanes, state.jit)
    outputs, inputs = weight.shape[:2]
    return fit(choice, outputs, groups, rows, channel // LANES, inputs, lanes, state.jit)


def multiply(state: Lowering, node: Node, source: Source) -> None:
    """Lower the multiplication of a value by a layer's weight.

    Args:
        state: The state of the lowering.
        node: The layer.
        source: The value.
    """
    home = None if state.eight else state.home(node)
    if len(node.inputs) > 1:
        in_place(state, node, node.inputs[1], home)
    out, target = state.output(node.output, home)
    columns, slabs, rows = 0, out.slabs, out.rows
    if out.joined and source.in_slabs:
        _, rows, columns = out.shape
        slabs = -(-columns // LANES)
    weight, groups, channel = node.kernel, node.attrs.get("groups", 1), source.view.chan
    choice = choose(state, node, rows, channel, source.step * LANES)
    state.meter.need(packing_bytes(weight, choice))
    numbers = None if source.masks is None else source.masks.numbers
    packed = state.packs.get(state.node, weight, source.taps, channel, groups, choice, numbers)
    state.used[state.node] = choice
    if choice.jit:
        height = shared_height(choice.height, rows, slabs, state.threads, weight.nonzeros, weight.shape[1])
        choice = replace(choice, height=height)
    parts = -(-rows // choice.height)
    shares = split(slabs * parts, state.threads, -(-weight.shape[0] // choice.width))
    # A thread keeps to its part of the image or tokens, or to its channels where those have too few parts.
    in_parts = (out.joined and not columns) or len(out.shape) == 2
    by_group = (parts if in_parts else slabs) < state.threads
    state.rows[state.node] = rows
    state.packed[state.node] = PackedWeight(weight, packed, source.taps, channel, groups, choice)
    res = state.input(node.inputs[1]) if len(node.inputs) > 1 else None
    call = _Call(
        node, source, out, target, res, choice, packed, packed.splits(shares, choice), columns, slabs, rows,
        weight.shape[0], shares, by_group, slabs * parts * shares,
    )  # fmt: skip
    if choice.jit:
        _generated(state, call)
    else:
        _lists(state, call)


def _generated(state: Lowering, call: _Call) -> None:
    choice, packed, bias = call.choice, call.packed, call.node.arrays["bias"]
    relu = call.node.attrs["activation"] == "relu"
    code = state.packs.code(packed, call.outputs, choice.width, call.res is not None, relu, bias)
    state.scratch = max(state.scratch, 2 * choice.width * 2 * LANES)
    number, arrays = len(state.codes), [packed.values, bias, code, call.splits]
    bits = None if call.source.masks is None else call.source.masks.bits
    if bits is not None:
        arrays.append(bits)
    if number:
        state.codes[-1].arrays.append(code)  # the layer before loads its first chunks into the cache
    state.codes.append(Generated(code, -(-call.outputs // choice.width) if call.by_group else 1, arrays))

    def params() -> JitConv:
        after = state.codes[number + 1] if number + 1 < len(state.codes) else None
        return JitConv(
            *call.views(), call.columns, call.slabs, call.rows, call.outputs, Active.of(call.node.attrs),
            choice.height, call.shares, call.by_group, code.ctypes.data,
            None if bits is None else bits.ctypes.data, call.splits.ctypes.data,
            after.code.ctypes.data if after else None, after.chunks if after else 0,
        )  # fmt: skip

    work = call.slabs * call.rows * LANES * (packed.values.size + 4 * call.outputs)
    state.call(params, call.tasks, call.uses, arrays, work)


def _lists(state: Lowering, call: _Call) -> None:
    choice, packed, bias, splits = call.choice, call.packed, call.node.arrays["bias"], call.splits
    tiles = 1 + (call.res is not None) if call.columns else int(packed.blocks > 1)
    widest = int(np.diff(splits).max())
    state.scratch = max(state.scratch, tiles * widest * choice.width * choice.height * LANES)

    def params() -> Conv:
        return Conv(
            *call.views(), call.columns, call.source.step * LANES, call.slabs, call.rows, call.outputs,
            Active.of(call.node.attrs), choice.width, choice.height, choice.lanes, call.shares, packed.blocks,
            call.by_group, packed.values.ctypes.data, bias.ctypes.data, packed.offsets.ctypes.data,
            packed.starts.ctypes.data, packed.base.ctypes.data, splits.ctypes.data,
        )  # fmt: skip

    constants = [packed.values, bias, packed.offsets, packed.starts, packed.base, splits]
    work = call.slabs * call.rows * LANES * (packed.values.size + 4 * packed.starts.size)
    state.call(params, call.tasks, call.uses, constants, work)


def in_place(state: Lowering, node: Node, value: int, home: Layout | None) -> None:
    """Let the result overwrite the value that is added to it, if nothing else reads that value, to save memory.

    Args:
        state: The state of the lowering.
        node: A layer with a residual.
        value: The residual.
        home: Layout of the result, or None for the usual one.
    """
    if value == node.inputs[0] or value in state.graph.outputs or state.users[value][-1] is not node:
        return
    layout, buffer = state.input(value)
    if sum(place is buffer for place in state.places.values()) == 1 and layout == state.layout_of(node.output, home):
        state.layouts[node.output], state.places[node.output] = layout, buffer

