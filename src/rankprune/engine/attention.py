"""Attention written out as product, softmax and product, put back together as the one operator it is."""

from __future__ import annotations

from numbers import Number
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
_PRODUCTS = (_aten.matmul.default, _aten.bmm.default)
_SCALED = (_aten.mul.Tensor, _aten.mul.Scalar, _aten.div.Tensor, _aten.div.Scalar)


def join_attention(graph: fx.Graph) -> None:
    """softmax(s · q kᵀ) v, in place, as scaled_dot_product_attention; whatever differs stays as it is."""
    for node in list(graph.nodes):
        if node.target is _aten.softmax.int:
            _join(graph, node)


def _join(graph: fx.Graph, softmax: fx.Node) -> None:
    if softmax.args[1] not in (-1, len(softmax.meta["val"].shape) - 1):
        return
    scores, scale, inner = _unscaled(softmax.args[0])
    if not _only(scores) or scores.target not in _PRODUCTS:
        return
    last = softmax
    dropped: list[fx.Node] = []
    while _only(last) and _still(next(iter(last.users))):
        last = next(iter(last.users))
        dropped.insert(0, last)
    product = next(iter(last.users)) if _only(last) else None
    if product is None or product.target not in _PRODUCTS or product.args[0] is not last:
        return
    query, factor, before = _unscaled(scores.args[0])
    with graph.inserting_before(product):
        keys = graph.call_function(_aten.transpose.int, (scores.args[1], -2, -1))
        joined = graph.call_function(
            _aten.scaled_dot_product_attention.default, (query, keys, product.args[1]), {"scale": scale * factor}
        )
    joined.meta = product.meta
    product.replace_all_uses_with(joined)
    for old in (product, *dropped, softmax, *inner, scores, *before):
        graph.erase_node(old)


def _unscaled(node: Any) -> tuple[Any, float, list[fx.Node]]:
    """What was multiplied by numbers, their product, and the nodes that did it."""
    scale, passed = 1.0, []
    while _only(node) and node.target in _SCALED and isinstance(node.args[1], Number):
        factor = float(node.args[1])  # type: ignore[arg-type]
        scale = scale * factor if "mul" in str(node.target) else scale / factor
        passed.append(node)
        node = node.args[0]
    return node, scale, passed


def _still(node: fx.Node) -> bool:
    """Whether it is a dropout that drops nothing: one that is forced on in evaluation is not attention's."""
    return node.target is _aten.dropout.default and node.args[2] is False


def _only(node: Any) -> bool:
    """Whether it is a result that one other node uses."""
    return isinstance(node, fx.Node) and node.op == "call_function" and len(node.users) == 1
