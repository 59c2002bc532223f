"""Which images lie with their rows joined: no lanes are empty, and convolutions can read them where they lie."""

from __future__ import annotations

import math

from rankprune.engine.graph.graph import Graph, Node

from .direct import direct_window
from .native import LANES

COPY = 8  # multiply-adds of a vector that take as long as copying one


def joined_values(graph: Graph, lanes: int, jit: bool) -> frozenset[int]:
    """Images that lie with their rows joined: where that saves more multiply-adds and copies than it costs in copies.

    A 1x1 convolution, a convolution that reads its input where it lies and an activation go through their input,
    result and residual in the same way, so that those lie alike. Other convolutions copy their input anyway, and copy
    their result to where it belongs; pooling does the latter, and a mean reads either.

    Args:
        graph: The graph.
        lanes: Floats of the widest vectors.
        jit: Code may be generated.

    Returns:
        The values whose rows are to be joined.
    """
    like = list(range(len(graph.shapes)))  # a value that lies as this one does, up to one that is its own
    gain = [0] * len(like)
    slabs = {value for value, shape in enumerate(graph.shapes) if len(shape) != 3}
    for node in graph.nodes:
        if node.op == "pool":
            slabs.update(node.inputs)
        elif node.op not in ("conv", "activation", "mean"):
            slabs.update([*node.inputs, node.output])
        if node.op not in ("conv", "activation"):
            continue
        direct = direct_window(graph, node, lanes, jit) is not None
        copies = not direct and not _pointwise(node)
        alike = not copies and node.attrs.get("stride", [1, 1]) == [1, 1]
        for value in node.inputs if alike else node.inputs[1:]:
            like[_root(like, value)] = _root(like, node.output)
        if node.op == "activation":
            continue
        in_slabs, joined = _vectors(graph.shapes[node.output], lanes)
        if copies:
            for value in (node.inputs[0], node.output):
                gain[value] -= COPY * graph.shapes[value][0] * _vectors(graph.shapes[value], lanes)[0]
            continue
        gain[node.output] += node.kernel.nonzeros * (in_slabs - joined)
        if alike and direct and not _pointwise(node):  # in slabs, it would make copies shifted to the left and right
            gain[node.output] += 2 * COPY * node.kernel.shape[1] * in_slabs
    wrong = {_root(like, value) for value in slabs}
    total = dict.fromkeys(range(len(like)), 0)
    for value, part in enumerate(gain):
        total[_root(like, value)] += part
    return frozenset(v for v in total if total[_root(like, v)] > 0 and _root(like, v) not in wrong)


def _vectors(shape: tuple[int, ...], lanes: int) -> tuple[int, int]:
    """Of a channel in slabs, and with its rows joined."""
    _, height, width = shape
    return -(-width // LANES) * math.ceil(height * LANES / lanes), math.ceil(height * width / lanes)


def _pointwise(node: Node) -> bool:
    if node.op != "conv":
        return node.op == "activation"
    return tuple(node.kernel.shape[2:]) == (1, 1) and node.attrs["padding"] == [0, 0]


def _root(like: list[int], value: int) -> int:
    while like[value] != value:
        like[value] = like[like[value]]
        value = like[value]
    return value
