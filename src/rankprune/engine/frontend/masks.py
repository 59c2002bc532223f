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
    graph, made = module.graph, dict[fx.Node, fx.Node]()
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not _ATTENTION:
            continue
        given = node.args[_MASK] if len(node.args) > _MASK else node.kwargs.get("attn_mask")
        shown = given.meta.get("val") if isinstance(given, fx.Node) else None
        if not isinstance(given, fx.Node) or not isinstance(shown, Tensor) or shown.dtype != torch.bool:
            continue
        if given not in made:
            made[given] = _as_float(graph, given, shown)
        node.replace_input_with(given, made[given])
    module.recompile()


def _as_float(graph: fx.Graph, mask: fx.Node, shown: Tensor) -> fx.Node:
    where = torch.ops.aten.where.Scalar
    with graph.inserting_after(mask):
        node = graph.call_function(where, (mask, 0.0, -math.inf))
    node.meta = {**mask.meta, "val": where(shown, 0.0, -math.inf)}
    return node
