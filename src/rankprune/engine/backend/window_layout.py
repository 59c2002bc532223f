"""The layout that the convolutions reading a value need: planes, a frame of zeros, or the place of a plane."""

from __future__ import annotations

from rankprune.engine.graph.graph import Graph, Node
from rankprune.engine.graph.limits import Meter
from rankprune.engine.graph.planes import PlaneSet, plane_set

from .layout import Layout, odd_lines
from .native import LANES

WINDOW = ("stride", "padding", "dilation")
Users = dict[int, list[Node]]  # the nodes that read each value


def plane_stride(planes: PlaneSet) -> int:
    """Return the floats between the planes of two channels.

    Args:
        planes: The planes.

    Returns:
        The stride.
    """
    return odd_lines(planes.count * planes.rows * LANES)


def planes_of(graph: Graph, meter: Meter, node: Node, kernel: list[int]) -> PlaneSet:
    """Return the planes of a node's input. The node may come from a file, so the tables' size is checked first.

    Args:
        graph: The network.
        meter: Counts memory against the limits.
        node: A convolution or pooling.
        kernel: Height and width of its window.

    Returns:
        The planes.

    Raises:
        TooLarge: The tables exceed the limits.
    """
    stride, pad, dilation = (node.attrs[k] for k in WINDOW)
    meter.need(32 * (kernel[0] + 1) * (kernel[1] + 1))
    return plane_set(graph.shapes[node.output], kernel, stride, pad, dilation)


def among_planes(graph: Graph, users: Users, meter: Meter, value: int) -> Layout | None:
    """Return the layout in which a value already is the center plane of its only user, which then need not copy it.

    Args:
        graph: The network.
        users: The nodes that read each value.
        meter: Counts memory against the limits.
        value: The value.

    Returns:
        The layout; None if the value has another user or the user has no such plane.
    """
    readers = users.get(value, [])
    if len(readers) != 1 or readers[0].op != "conv" or readers[0].inputs != [value, *readers[0].inputs[1:]]:
        return None
    node = readers[0]
    kernel = list(node.kernel.shape[2:])
    channels, height, width = graph.shapes[value]
    out = graph.shapes[node.output]
    if value in graph.outputs or value in node.inputs[1:] or kernel == [1, 1]:
        return None
    if node.attrs["stride"] != [1, 1]:
        return None
    planes = planes_of(graph, meter, node, kernel)
    top = -int(planes.y_first[0])
    if planes.centre < 0 or out[2] != width or top < 0 or top + height > planes.rows:
        return None
    chan = plane_stride(planes)
    origin = (planes.centre * planes.rows + top) * LANES
    return Layout(
        graph.shapes[value], False, planes.slabs, channels, height, channels * chan, chan, origin,
        planes.slabs * channels * chan,
    )  # fmt: skip


def frame(graph: Graph, users: Users, value: int) -> tuple[int, int, int, int]:
    """Return the frame of zeros that convolutions over eight images read around a value.

    Args:
        graph: The network.
        users: The nodes that read each value.
        value: The value.

    Returns:
        (top, bottom, left, right).
    """
    need = [0, 0, 0, 0]
    if len(graph.shapes[value]) != 3:
        return (0, 0, 0, 0)
    height, width = graph.shapes[value][1:]
    for node in users.get(value, []):
        if node.op == "conv" and node.inputs[0] == value:
            out = graph.shapes[node.output][1:]
            for axis, size in enumerate((height, width)):
                k, s, p, d = (v[axis] for v in (node.kernel.shape[2:], *(node.attrs[n] for n in WINDOW)))
                need[2 * axis] = max(need[2 * axis], p)
                reach = (out[axis] - 1) * s - p + (k - 1) * d - (size - 1)
                need[2 * axis + 1] = max(need[2 * axis + 1], reach)
    return (need[0], need[1], need[2], need[3])
