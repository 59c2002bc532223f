"""Which images lie with their rows joined, without the lanes that slabs of 8 columns leave empty."""

from __future__ import annotations

import math

from rankprune.engine.graph.graph import Graph, Node

from .native import LANES

COPY = 8  # multiply-adds of a vector that take as long as copying one


def joined_values(graph: Graph, lanes: int) -> frozenset[int]:
    """Images that only convolutions and activations use, where multiply-adds saved outweigh copies.

    A 1x1 convolution and an activation go through their input, result and residual in the same way, so that those lie
    alike. Other convolutions copy their input anyway, and copy their result to where it belongs.

    Args:
        graph: The graph.
        lanes: Floats of the widest vectors.

    Returns:
        The values whose rows are to be joined.
    """
    like = list(range(len(graph.shapes)))  # a value that lies as this one does, up to one that is its own
    gain = [0] * len(like)
    slabs = {value for value, shape in enumerate(graph.shapes) if len(shape) != 3}
    for node in graph.nodes:
        if node.op not in ("conv", "activation"):
            slabs.update([*node.inputs, node.output])
        elif _pointwise(node):
            for value in node.inputs:
                like[_root(like, value)] = _root(like, node.output)
            if node.op == "conv":
                in_slabs, joined = _vectors(graph.shapes[node.output], lanes)
                gain[node.output] += node.kernel.nonzeros * (in_slabs - joined)
        else:
            for value in node.inputs[1:]:
                like[_root(like, value)] = _root(like, node.output)
            for value in (node.inputs[0], node.output):
                if len(shape := graph.shapes[value]) == 3:
                    gain[value] -= COPY * shape[0] * _vectors(shape, lanes)[0]
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
        return True
    return tuple(node.kernel.shape[2:]) == (1, 1) and node.attrs["stride"] == [1, 1] and node.attrs["padding"] == [0, 0]


def _root(like: list[int], value: int) -> int:
    while like[value] != value:
        like[value] = like[like[value]]
        value = like[value]
    return value
