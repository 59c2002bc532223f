"""Lowers convolutions and pooling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rankprune.engine.graph.graph import Node, Unsupported
from rankprune.engine.graph.planes import PlaneSet

from .arena import Buffer
from .direct import direct_window
from .layout import joined_margin, odd_lines
from .lower_state import Lowering, Source
from .multiply import as_it_lies, choose, multiply
from .native import LANES, Params, View, fields, kernel_constant
from .window_layout import plane_stride, planes_of


class Planes(Params):
    """Parameters of the kernel that copies an image into planes."""

    _fields_ = fields(
        "View in; int64_t plain, channels, height, width, at, slab, chan, slabs, rows, taps, phases;"
        "int64_t stride_x, stride_y; Longs x_first, y_first; int64_t skip; double fill"
    )


class Phases(Params):
    """Parameters of the kernel that divides an image by a stride."""

    _fields_ = fields(
        "View in; int64_t plain, channels, height, width; View out; int64_t stride_y, stride_x, rows, columns;"
        "int64_t count; Longs first"
    )


class Pool(Params):
    """Parameters of the pooling kernel for one image."""

    _fields_ = fields("Planes planes; View out; int64_t columns, rows, count, average; Longs offsets; Floats scale")


class Window(Params):
    """Parameters of the pooling kernel for eight images."""

    _fields_ = fields(
        "View in, out; int64_t channels, height, width, out_height, out_width, kernel_y, kernel_x, stride_y, stride_x,"
        "pad_y, pad_x, dilation_y, dilation_x, average, count_pad"
    )


def planes_params(
    state: Lowering, node: Node, planes: PlaneSet, fill: float
) -> tuple[Callable[[int], Planes], Buffer]:
    """Prepare the copy of a node's input into planes.

    Args:
        state: The state of the lowering.
        node: A convolution or pooling.
        planes: The planes that its taps read.
        fill: Value of the padding.

    Returns:
        A function from the planes' offset to the parameters, and the input's buffer.
    """
    value = node.inputs[0]
    channels, height, width = state.graph.shapes[value]
    plain = value in state.plain
    layout, source = (state.layouts[value], state.places[value]) if plain else state.input(value)
    stride = node.attrs["stride"]
    chan = plane_stride(planes)
    there = planes.centre if value in state.in_planes else -1

    def params(at: int) -> Planes:
        view = View(source.at, 0, height * width) if plain else layout.view(source.at)
        return Planes(
            view, plain or layout.joined, channels, height, width, at, channels * chan, chan, planes.slabs, planes.rows,
            planes.x_first.size, planes.y_first.size, stride[1], stride[0], planes.x_first.ctypes.data,
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
    if state.eight:
        layout, source = state.input(value)
        state.meter.need(32 * kernel[0] * kernel[1])
        y = np.arange(kernel[0])[:, None] * dilation[0] * layout.slab
        taps = y + np.arange(kernel[1])[None, :] * dilation[1] * LANES
        shift = -pad[0] * layout.slab - pad[1] * LANES
        view = View(layout.origin + shift, layout.slab * stride[0], layout.channel)
        return multiply(state, node, Source(source, view, taps, stride[1]))
    if kernel == [1, 1] and stride == [1, 1] and pad == [0, 0]:
        return multiply(state, node, as_it_lies(state, node))
    handed = state.handed.get(state.node)
    return multiply(state, node, handed or _direct(state, node, value) or _copied(state, node, kernel, value))


def hand_over(state: Lowering, node: Node, value: int) -> Source:
    """Divide an image by the stride of a convolution that reads several images; this is called for one of them.

    Args:
        state: The state of the lowering.
        node: The convolution.
        value: The image.

    Returns:
        What the convolution reads. The image that the call divides is the first in it.
    """
    return _direct(state, node, value) or _copied(state, node, list(node.kernel.shape[2:]), value)


def _direct(state: Lowering, node: Node, value: int) -> Source | None:
    """The input where it lies or divided by the stride, if code is generated for the layer and its result is joined."""
    window = direct_window(state.graph, node, state.lanes, state.jit, state.images)
    strided = node.attrs["stride"] != [1, 1]
    if window is None or node.output not in state.joined or not (strided or value in state.joined):
        return None
    rows = state.layout_of(node.output, None).rows
    if not choose(state, node, rows, window.channel, LANES).jit:
        return None
    if strided:
        buffer, view = divided(state, value, node.attrs["stride"], window.phases, window.apart, window.channel)
    else:
        layout, buffer = state.input(value)
        view = View(layout.origin, layout.slab, layout.channel)
    return Source(buffer, view, window.taps, masks=window.masks)


def divided(
    state: Lowering, value: int, stride: list[int], phases: np.ndarray, apart: int, channel: int
) -> tuple[Buffer, View]:
    """Divide an image by a stride, into images with joined rows.

    Args:
        state: The state of the lowering.
        value: The image.
        stride: Rows and columns between two pixels of a part.
        phases: First row and column of each part, (phases, 2).
        apart: Floats between the parts of a channel.
        channel: Floats between two channels.

    Returns:
        The buffer of the parts, and the place of the first.
    """
    channels, height, width = state.graph.shapes[value]
    rows, columns = -(-height // stride[0]), -(-width // stride[1])
    layout, source = state.input(value)
    margin = joined_margin((channels, rows, columns))
    target = state.buffer(2 * margin + channels * channel)
    state.call(
        lambda: Phases(
            layout.view(source.at), layout.joined, channels, height, width, View(target.at + margin, apart, channel),
            *stride, rows, columns, len(phases), phases.ctypes.data,
        ),
        -(-channels // kernel_constant("kPlaneChannels")), [source, target], [phases], channels * len(phases) * apart,
    )  # fmt: skip
    return target, View(margin, channels * channel, channel)


def _copied(state: Lowering, node: Node, kernel: list[int], value: int) -> Source:
    """Copies of the input, shifted so that each tap reads aligned rows."""
    out = state.graph.shapes[node.output]
    channels = state.graph.shapes[value][0]
    if node.output in state.joined and kernel == [1, 1] and node.attrs["padding"] == [0, 0]:
        apart = odd_lines(out[1] * out[2])
        return Source(*divided(state, value, node.attrs["stride"], np.zeros((1, 2), np.int64), apart, apart))
    if state.images > 1:
        raise Unsupported("a window over several images needs generated code")
    planes = planes_of(state.graph, state.meter, node, kernel)
    params, source = planes_params(state, node, planes, 0.0)
    chan = plane_stride(planes)
    target = source if value in state.in_planes else state.buffer(planes.slabs * channels * chan)
    tasks = planes.slabs * -(-channels // kernel_constant("kPlaneChannels"))
    work = planes.slabs * channels * planes.count * planes.rows * LANES
    state.call(lambda: params(target.at), tasks, [source, target], [planes.x_first, planes.y_first], work)
    return Source(target, View(0, channels * chan, chan), planes.taps * LANES, in_slabs=True)


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
    rows = state.graph.shapes[node.output][1]
    offsets = np.ascontiguousarray(planes.taps.reshape(-1), np.int64)
    scale = (
        _reciprocals(rows, planes.slabs, height, width, kernel, stride, pad, a["count_pad"])
        if a["average"]
        else np.ones(1, np.float32)
    )
    plane = planes.count * planes.rows * LANES
    state.scratch = max(state.scratch, plane)
    state.call(
        lambda: Pool(
            params(0),
            out.view(target.at),
            out.shape[2] if out.joined else 0,
            rows,
            offsets.size,
            a["average"],
            offsets.ctypes.data,
            scale.ctypes.data,
        ),
        planes.slabs * -(-channels // kernel_constant("kPlaneChannels")),
        [source, target],
        [planes.x_first, planes.y_first, offsets, scale],
        planes.slabs * channels * (plane + rows * LANES * offsets.size),
    )


def _reciprocals(
    rows: int, slabs: int, height: int, width: int, kernel: list[int], stride: list[int], pad: list[int],
    count_pad: bool,
) -> np.ndarray:  # fmt: skip
    """1 / (numbers under the window), [slab][row][8]; padding counts if `count_pad`, positions beyond it never do."""

    def counts(size: int, outs: int, k: int, s: int, p: int) -> np.ndarray:
        low = np.arange(outs) * s - p
        high = np.minimum(low + k, size + p)
        return high - low if count_pad else np.minimum(high, size) - np.maximum(low, 0)

    y = counts(height, rows, kernel[0], stride[0], pad[0])
    x = counts(width, slabs * LANES, kernel[1], stride[1], pad[1])
    table = 1.0 / np.maximum(y[:, None] * x[None, :], 1)
    table = table.reshape(rows, slabs, LANES).transpose(1, 0, 2)
    return np.ascontiguousarray(table, np.float32)


HANDLERS = {"conv": conv, "pool": pool}
