"""Lowers convolutions, linear layers over tokens, and pooling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rankprune.engine.graph.graph import Node, Unsupported
from rankprune.engine.graph.planes import PlaneSet

from .arena import Buffer
from .layout import Layout, joined_rows
from .lower_state import Generated, Lowering
from .native import LANES, Active, Params, View, fields, kernel_constant
from .packing import PackedWeight, fit, packing_bytes
from .shape_choice import default_choice, split
from .window_layout import plane_stride, planes_of


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
        "int64_t height, groups, by_group; Bytes code; Longs splits; Bytes next; int64_t next_chunks"
    )


class Planes(Params):
    """Parameters of the kernel that copies an image into planes."""

    _fields_ = fields(
        "View in; int64_t plain, channels, height, width, at, slab, chan, columns, slabs, rows, taps, phases;"
        "int64_t stride_x, stride_y; Longs x_first, y_first; int64_t skip; double fill"
    )


class Pool(Params):
    """Parameters of the pooling kernel for one image."""

    _fields_ = fields("Planes planes; View out; int64_t rows, count, average; Longs offsets; Floats scale")


class Window(Params):
    """Parameters of the pooling kernel for eight images."""

    _fields_ = fields(
        "View in, out; int64_t channels, height, width, out_height, out_width, kernel_y, kernel_x, stride_y, stride_x,"
        "pad_y, pad_x, dilation_y, dilation_x, average, count_pad"
    )


def planes_params(
    state: Lowering, node: Node, planes: PlaneSet, fill: float, joined: Layout | None = None
) -> tuple[Callable[[int], Planes], Buffer]:
    """Prepare the copy of a node's input into planes.

    Args:
        state: The state of the lowering.
        node: A convolution or pooling.
        planes: The planes that its taps read.
        fill: Value of the padding.
        joined: Layout of the only plane, if its rows are joined.

    Returns:
        A function from the planes' offset to the parameters, and the input's buffer.
    """
    value = node.inputs[0]
    channels, height, width = state.graph.shapes[value]
    plain = value in state.plain
    layout, source = (state.layouts[value], state.places[value]) if plain else state.input(value)
    stride = node.attrs["stride"]
    chan = joined.channel if joined else plane_stride(planes)
    columns = joined.shape[2] if joined else 0

    there = planes.centre if value in state.in_planes else -1

    def params(at: int) -> Planes:
        view = View(source.at, 0, height * width) if plain else layout.view(source.at)
        return Planes(
            view, plain or layout.joined, channels, height, width, at, channels * chan, chan, columns, planes.slabs,
            planes.rows, planes.x_first.size, planes.y_first.size, stride[1], stride[0], planes.x_first.ctypes.data,
            planes.y_first.ctypes.data, there, fill,
        )  # fmt: skip

    return params, source


def conv(state: Lowering, node: Node) -> None:
    """Lower a convolution.

    Args:
        state: The state of the lowering.
        node: The node.
    """
    value = node.inputs[0]
    kernel, stride, pad, dilation = (
        list(node.kernel.shape[2:]),
        *(node.attrs[k] for k in ("stride", "padding", "dilation")),
    )
    groups = node.attrs["groups"]
    if state.eight:
        layout, source = state.input(value)
        state.meter.need(32 * kernel[0] * kernel[1])
        y = np.arange(kernel[0])[:, None] * dilation[0] * (layout.slab // LANES)
        taps = y + np.arange(kernel[1])[None, :] * dilation[1]
        shift = -pad[0] * layout.slab - pad[1] * LANES
        _multiply(
            state, node, source, layout.origin + shift, layout.slab * stride[0], layout.channel, stride[1], taps, groups
        )
    elif kernel == [1, 1] and stride == [1, 1] and pad == [0, 0]:
        layout, source = state.input(value)
        one = np.zeros((1, 1), np.int64)
        _multiply(state, node, source, layout.origin, layout.slab, layout.channel, 1, one, groups)
    else:
        planes = planes_of(state.graph, state.meter, node, kernel)
        channels, out = state.graph.shapes[value][0], state.graph.shapes[node.output]
        # A 1x1 convolution with strides goes through its only plane as the others do through their input.
        plane = joined_rows((channels, *out[1:])) if node.output in state.joined and planes.taps.size == 1 else None
        params, source = planes_params(state, node, planes, 0.0, plane)
        chan = plane.channel if plane else plane_stride(planes)
        state.scratch = max(state.scratch, planes.rows * LANES if plane else 0)
        size = plane.size if plane else planes.slabs * channels * chan
        target = source if value in state.in_planes else state.buffer(size)
        tasks = planes.slabs * -(-channels // kernel_constant("kPlaneChannels"))
        work = planes.slabs * channels * planes.count * planes.rows * LANES
        state.call(lambda: params(target.at), tasks, [source, target], [planes.x_first, planes.y_first], work)
        _multiply(state, node, target, 0, channels * chan, chan, 1, planes.taps, groups, plane is None)


def linear(state: Lowering, node: Node) -> None:
    """Lower a linear layer over tokens, or over eight images.

    Args:
        state: The state of the lowering.
        node: The node.

    Raises:
        Unsupported: The value is tokens and the layout is for eight images.
    """
    layout, source = state.input(node.inputs[0])
    if len(layout.shape) != (1 if state.eight else 2):
        raise Unsupported("a linear layer over tokens needs one image at a time")
    one = np.zeros((1, 1), np.int64)
    _multiply(state, node, source, layout.origin, layout.slab, layout.channel, 1, one, groups=1)


def _multiply(
    state: Lowering, node: Node, source: Buffer, origin: int, slab: int, channel: int, step: int, taps: np.ndarray,
    groups: int, in_slabs: bool = False,
) -> None:  # fmt: skip
    """`in_slabs`: the source is in slabs of 8 columns, wherever the result goes."""
    home = None if state.eight else state.home(node)
    if len(node.inputs) > 1:
        in_place(state, node, node.inputs[1], home)
    out, target = state.output(node.output, home)
    columns, slabs, rows = 0, out.slabs, out.rows
    if out.joined and in_slabs:
        _, rows, columns = out.shape
        slabs = -(-columns // LANES)
    weight = node.kernel
    outputs, inputs = weight.shape[:2]
    channel_rows = channel // LANES
    choice = state.choices.get(state.node)
    lanes = state.lanes if step == 1 else LANES
    if choice is None:
        choice = default_choice(weight, groups, taps, rows, lanes, state.jit)
    choice = fit(choice, outputs, groups, rows, channel_rows, inputs, lanes, state.jit)
    state.meter.need(packing_bytes(weight, choice))
    packed = state.packs.get(state.node, weight, taps, channel_rows, groups, choice)
    parts = -(-rows // choice.height)
    shares = split(slabs * parts, state.threads, -(-outputs // choice.width))
    # A thread keeps to its part of the image, or to its channels where the image has too few parts.
    by_group = (parts if out.joined and not columns else slabs) < state.threads
    splits = packed.splits(shares, choice)
    state.used[state.node] = choice
    state.rows[state.node] = rows
    state.packed[state.node] = PackedWeight(weight, packed, taps, channel_rows, groups, choice)
    bias = node.arrays["bias"]
    res, uses = None, [source, target]
    if len(node.inputs) > 1:
        res_layout, res = state.input(node.inputs[1])
        uses.append(res)

    tasks = slabs * parts * shares
    if choice.jit:
        code = state.packs.code(
            packed, outputs, choice.width, res is not None, node.attrs["activation"] == "relu", bias
        )
        state.scratch = max(state.scratch, 2 * choice.width * 2 * LANES)
        number, arrays = len(state.codes), [packed.values, bias, code, splits]
        if number:
            state.codes[-1].arrays.append(code)  # the layer before loads its first chunks into the cache
        state.codes.append(Generated(code, -(-outputs // choice.width) if by_group else 1, arrays))

        def generated() -> JitConv:
            skip = View(-1, 0, 0) if res is None else res_layout.view(res.at)
            after = state.codes[number + 1] if number + 1 < len(state.codes) else None
            return JitConv(
                View(source.at + origin, slab, channel), out.view(target.at), skip, columns, slabs, rows, outputs,
                Active.of(node.attrs), choice.height, shares, by_group, code.ctypes.data, splits.ctypes.data,
                after.code.ctypes.data if after else None, after.chunks if after else 0,
            )  # fmt: skip

        work = slabs * rows * LANES * (packed.values.size + 4 * outputs)
        state.call(generated, tasks, uses, arrays, work)
        return
    tiles = 1 + (res is not None) if columns else int(packed.blocks > 1)
    widest = int(np.diff(splits).max())
    state.scratch = max(state.scratch, tiles * widest * choice.width * choice.height * LANES)

    def params() -> Conv:
        skip = View(-1, 0, 0) if res is None else res_layout.view(res.at)
        return Conv(
            View(source.at + origin, slab, channel), out.view(target.at), skip, columns, step * LANES, slabs, rows,
            outputs, Active.of(node.attrs), choice.width, choice.height, choice.lanes, shares,
            packed.blocks, by_group, packed.values.ctypes.data, bias.ctypes.data, packed.offsets.ctypes.data,
            packed.starts.ctypes.data, packed.base.ctypes.data, splits.ctypes.data,
        )  # fmt: skip

    constants = [packed.values, bias, packed.offsets, packed.starts, packed.base, splits]
    work = slabs * rows * LANES * (packed.values.size + 4 * packed.starts.size)
    state.call(params, tasks, uses, constants, work)


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


def pool(state: Lowering, node: Node) -> None:
    """Lower max or average pooling.

    Args:
        state: The state of the lowering.
        node: The node.
    """
    a = node.attrs
    kernel, stride, pad, dilation = (a[k] for k in ("kernel", "stride", "padding", "dilation"))
    channels, height, width = state.graph.shapes[node.inputs[0]]
    if state.eight:
        source_layout, source = state.input(node.inputs[0])
        out, target = state.output(node.output)
        state.call(
            lambda: Window(
                source_layout.view(source.at), out.view(target.at), channels, height, width, out.slabs, out.rows,
                *kernel, *stride, *pad, *dilation, a["average"], a["count_pad"],
            ),
            out.slabs * channels,
            [source, target],
            work=out.slabs * channels * out.rows * LANES * (kernel[0] * kernel[1] + 1),
        )  # fmt: skip
        return
    planes = planes_of(state.graph, state.meter, node, kernel)
    params, source = planes_params(state, node, planes, 0.0 if a["average"] else -np.inf)
    out, target = state.output(node.output)
    offsets = np.ascontiguousarray(planes.taps.reshape(-1), np.int64)
    scale = (
        _reciprocals(out, height, width, kernel, stride, pad, a["count_pad"])
        if a["average"]
        else np.ones(1, np.float32)
    )
    plane = planes.count * planes.rows * LANES
    state.scratch = max(state.scratch, plane)
    state.call(
        lambda: Pool(
            params(0),
            out.view(target.at),
            out.rows,
            offsets.size,
            a["average"],
            offsets.ctypes.data,
            scale.ctypes.data,
        ),
        planes.slabs * -(-channels // kernel_constant("kPlaneChannels")),
        [source, target],
        [planes.x_first, planes.y_first, offsets, scale],
        planes.slabs * channels * (plane + out.rows * LANES * offsets.size),
    )


def _reciprocals(
    out: Layout, height: int, width: int, kernel: list[int], stride: list[int], pad: list[int], count_pad: bool
) -> np.ndarray:
    """1 / (numbers under the window), [slab][row][8]; padding counts if `count_pad`, positions beyond it never do."""

    def counts(size: int, outs: int, k: int, s: int, p: int) -> np.ndarray:
        low = np.arange(outs) * s - p
        high = np.minimum(low + k, size + p)
        return high - low if count_pad else np.minimum(high, size) - np.maximum(low, 0)

    y = counts(height, out.rows, kernel[0], stride[0], pad[0])
    x = counts(width, out.slabs * LANES, kernel[1], stride[1], pad[1])
    table = 1.0 / np.maximum(y[:, None] * x[None, :], 1)
    table = table.reshape(out.rows, out.slabs, LANES).transpose(1, 0, 2)
    return np.ascontiguousarray(table, np.float32)


HANDLERS = {"conv": conv, "pool": pool}
