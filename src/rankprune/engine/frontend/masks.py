"""Converts boolean attention masks to float32, which the kernels can add to the scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_MASK = 3  # position of the mask among the arguments


def float_masks(module: fx.GraphModule) -> None:
    """Replace boolean masks of attention by 0 where attention is allowed and -inf elsewhere, once per mask.

    Args:
        module: The exported module, changed in place.
    """
    graph, converted = module.graph, dict[fx.Node, fx.Node]()
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not _ATTENTION:
            continue
        mask = node.args[_MASK] if len(node.args) > _MASK else node.kwargs.get("attn_mask")
        shown = mask.meta.get("val") if isinstance(mask, fx.Node) else None
        if not isinstance(mask, fx.Node) or not isinstance(shown, Tensor) or shown.dtype != torch.bool:
            continue
        if mask not in converted:
            converted[mask] = _as_float(graph, mask, shown)
        node.replace_input_with(mask, converted[mask])
    module.recompile()


def _as_float(graph: fx.Graph, mask: fx.Node, shown: Tensor) -> fx.Node:
    where = torch.ops.aten.where.Scalar
    with graph.inserting_after(mask):
        node = graph.call_function(where, (mask, 0.0, -math.inf))
    node.meta = {**mask.meta, "val": where(shown, 0.0, -math.inf)}
    return node
