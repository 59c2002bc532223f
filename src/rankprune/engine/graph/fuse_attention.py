"""Fuses product, softmax and product into one attention operator: softmax(scale · q kᵀ + bias) v."""

from __future__ import annotations

import numpy as np

from .graph import Graph, Node


def fuse_attention(graph: Graph) -> None:
    """Fuse attention in place; patterns that differ stay as they are.

    Args:
        graph: The graph.
    """
    producers = {node.output: node for node in graph.nodes}
    reads: dict[int, list[Node]] = graph.users()
    for value in graph.outputs:
        reads.setdefault(value, []).append(Node("output", [value], -1))
    for last in list(graph.nodes):
        if last.op == "product":
            joined = _join(graph, last, producers, reads)
            if joined is not None:
                graph.nodes[graph.nodes.index(last)] = joined


def _join(graph: Graph, last: Node, producers: dict[int, Node], reads: dict[int, list[Node]]) -> Node | None:
    groups, heads, tokens, value_dim, keys = last.attrs["sizes"]
    whole = [0, 0, 0, heads * keys, 0, keys, 1, 0, 0, 1]
    softmax = producers.get(last.inputs[0])
    if softmax is None or softmax.op != "softmax" or softmax.attrs.get("groups", 1) != groups * heads:
        return None
    if len(reads[softmax.output]) > 1 or graph.shapes[softmax.output] != (tokens, groups * heads * keys):
        return None
    if not _same_places(last.attrs["a"], whole, (groups, heads, tokens, keys)):
        return None
    scale, bias, mask = np.ones((groups, heads)), None, None
    node = producers.get(softmax.inputs[0])
    while node is not None and node.op != "product":
        if len(reads[node.output]) > 1 or node.attrs.get("activation") != "none" or node.op not in ("add", "mul"):
            return None
        if "constant" in node.arrays:
            shape = (tokens, groups, heads, keys)
            constant = np.broadcast_to(node.arrays["constant"], graph.shapes[node.output]).reshape(shape)
            if node.op == "add":
                # A factor of 1 is not multiplied, because 1 * -inf in a mask must stay exact; others are positive.
                term = constant if (scale == 1).all() else constant * scale[None, :, :, None]
                bias = term if bias is None else bias + term
            elif (constant != constant[:1, :, :, :1]).any():
                return None
            else:
                scale = scale * constant[0, :, :, 0]
        elif node.op == "add" and mask is None and (scale == 1).all() and len(node.inputs) == 2:
            mask = node.inputs[1]
            expected = [1, groups * heads * keys] if "broadcast" in node.attrs else list(graph.shapes[node.output])
            if node.attrs.get("broadcast", expected) != expected:
                return None
        else:
            return None
        node = producers.get(node.inputs[0])
    if node is None or len(reads[node.output]) > 1 or (mask is not None and bias is not None):
        return None
    if node.attrs["sizes"][:4] != [groups, heads, tokens, keys] or node.attrs["stacked"]:
        return None
    arrays = {"scale": _compact(scale).astype(np.float32)}
    if bias is not None:
        arrays["bias"] = np.ascontiguousarray(_compact(bias.transpose(1, 2, 3, 0)), np.float32)
    inputs = [*node.inputs, last.inputs[1]]
    if mask is not None:
        if graph.shapes[mask] not in ((groups * heads * keys,), graph.shapes[softmax.output]):
            return None
        inputs.append(mask)
    attrs = {
        "q": node.attrs["a"], "k": node.attrs["b"], "v": _keys_first(last.attrs["b"]),
        "sizes": [groups, heads, tokens, keys, node.attrs["sizes"][4], value_dim], "stacked": last.attrs["stacked"],
    }  # fmt: skip
    if "safe" in softmax.attrs:
        attrs["safe"] = softmax.attrs["safe"]
    return Node("attention", inputs, last.output, last.name, attrs, arrays)


def _keys_first(spec: list[int]) -> list[int]:
    """The operand of the values: [column, key] in a product, [key, column] in attention."""
    return [*spec[:6], *spec[8:10], *spec[6:8]]


def _same_places(spec: list[int], other: list[int], sizes: tuple[int, ...]) -> bool:
    """Whether two operands are the same, ignoring the steps along axes of size 1."""
    axes = [i for i, n in enumerate(sizes) if n > 1]
    return spec[:2] == other[:2] and all(spec[2 + 2 * i : 4 + 2 * i] == other[2 + 2 * i : 4 + 2 * i] for i in axes)


def _compact(array: np.ndarray) -> np.ndarray:
    """Size 1 along the axes where it is constant."""
    for axis in range(array.ndim):
        first = array.take([0], axis)
        if (array == first).all():
            array = first
    return array
