"""Folds batch norms into the layers before them, and fuses additions and activations into layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .fuse_attention import fuse_attention
from .graph import Graph, Node, Weight
from .target import OPERATIONS

_STORES = ("conv", "linear")  # their kernels can add a residual and apply an activation when they store
_ACTIVE = (*_STORES, *OPERATIONS)


def fuse(graph: Graph) -> Graph:
    """Fuse operators of a graph, in place.

    Args:
        graph: The graph.

    Returns:
        The same graph.
    """
    _prune(graph)
    fuse_attention(graph)
    _prune(graph)
    for step in (_fold_affine, _fold_constant, _fuse_addition, _fuse_activation):
        _sweep(graph, step)
    _prune(graph)
    return graph


def _sweep(graph: Graph, step: Callable[[Graph, Node, Node], bool]) -> None:
    """Apply a step to each node and a node that makes one of its inputs, if nothing else reads that input."""
    producers = {node.output: node for node in graph.nodes}
    reads: dict[int, int] = dict.fromkeys(graph.outputs, 1)
    for node in graph.nodes:
        for value in node.inputs:
            reads[value] = reads.get(value, 0) + 1
    order = {id(node): i for i, node in enumerate(graph.nodes)}
    for i, node in enumerate(graph.nodes):
        for value in sorted(node.inputs, key=lambda v: -order[id(producers[v])] if v in producers else 0):
            before = producers.get(value)
            if before is not None and reads[value] == 1 and step(graph, before, node):
                # `before` now includes the node, and runs where the node did.
                before.output = node.output
                producers[node.output] = before
                graph.nodes[order[id(before)]] = Node("nothing", [], -1)
                graph.nodes[i] = before
                order[id(before)] = i
                break
    graph.nodes = [node for node in graph.nodes if node.op != "nothing"]


def _fold_affine(graph: Graph, before: Node, node: Node) -> bool:
    """Fold a depthwise 1x1 convolution, which scales and shifts each channel, into the layer's weight and bias."""
    plain = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}
    if before.op != "conv" or node.op != "conv" or before.attrs["activation"] != "none" or len(before.inputs) > 1:
        return False
    assert node.weight is not None
    if node.weight.shape != (graph.shapes[before.output][0], 1, 1, 1) or any(
        node.attrs[k] != v for k, v in plain.items()
    ):
        return False
    if node.attrs["groups"] != node.weight.shape[0]:
        return False
    _scale(before, node.weight.dense().reshape(-1))
    before.arrays["bias"] = before.arrays["bias"] + node.arrays["bias"]
    _activate(before, node)
    return True


def _fold_constant(graph: Graph, before: Node, node: Node) -> bool:
    """Fold a factor or summand per output channel into a layer (LayerScale, batch norm of a vector)."""
    if before.op not in _STORES or node.op not in ("mul", "add") or "constant" not in node.arrays:
        return False
    if before.attrs["activation"] != "none" or len(before.inputs) > 1:
        return False
    constant = np.broadcast_to(node.arrays["constant"], graph.shapes[node.output])
    axis = 0 if before.op == "conv" else -1
    flat = np.moveaxis(constant, axis, -1).reshape(-1, constant.shape[axis])
    if (flat != flat[0]).any():
        return False
    if node.op == "mul":
        _scale(before, flat[0])
    else:
        before.arrays["bias"] = before.arrays["bias"] + flat[0]
    _activate(before, node)
    return True


def _activate(before: Node, node: Node) -> None:
    """Move the activation of a node to the one before it."""
    before.attrs["activation"] = node.attrs["activation"]
    if "parameters" in node.attrs:
        before.attrs["parameters"] = node.attrs["parameters"]


def _scale(node: Node, scale: np.ndarray) -> None:
    weight = node.weight
    assert weight is not None
    per_output = weight.size // weight.shape[0]
    rows = np.arange(weight.size) // per_output if weight.position is None else weight.position // per_output
    values = (weight.values.astype(np.float64) * scale[rows]).astype(np.float32)
    node.weight = Weight(weight.shape, values, weight.position)
    node.arrays["bias"] = (node.arrays["bias"] * scale).astype(np.float32)


def _fuse_addition(graph: Graph, before: Node, node: Node) -> bool:
    if before.op not in _STORES or node.op != "add" or len(node.inputs) != 2 or node.inputs[0] == node.inputs[1]:
        return False
    if "broadcast" in node.attrs:
        return False
    other = node.inputs[0] if node.inputs[1] == before.output else node.inputs[1]
    same = graph.shapes[other] == graph.shapes[before.output] == graph.shapes[node.output]
    if before.attrs["activation"] != "none" or len(before.inputs) > 1 or not same:
        return False
    before.inputs.append(other)
    _activate(before, node)
    return True


def _fuse_activation(graph: Graph, before: Node, node: Node) -> bool:
    if node.op != "activation" or before.op not in _ACTIVE or before.attrs["activation"] != "none":
        return False
    _activate(before, node)
    return True


def _prune(graph: Graph) -> None:
    """Remove nodes whose results are not used."""
    needed, kept = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if node.output in needed:
            needed.update(node.inputs)
            kept.append(node)
    graph.nodes = kept[::-1]
