"""Attention of heads that lie one after the other in the channels of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from .graph import Graph, Unsupported
from .refs import IMAGES, Ref, emit


def _head_view(graph: Graph, ref: Any) -> tuple[int, int, int, int, int, int]:
    """A view [head, token, dim] of a value [token, channel]: value, first channel, channels between heads, sizes."""
    if not isinstance(ref, Ref):
        raise Unsupported("attention with a constant query, key or value")
    local = ref.local()
    shape = graph.shapes[ref.value]
    if local.ndim != 3 or ref.batch_axis() != 0 or len(shape) != 2:
        raise Unsupported("attention over something else than tokens")
    heads, tokens, dim = local.shape
    token, channel = np.divmod(local, shape[1])
    first = int(channel[0, 0, 0])
    between = int(channel[1, 0, 0]) - first if heads > 1 else dim
    expected = first + np.arange(heads)[:, None, None] * between + np.arange(dim)
    if tokens != shape[0] or (token != np.arange(tokens)[:, None]).any() or (channel != expected).any() or between < 0:
        raise Unsupported("heads that do not lie one after the other")
    return ref.value, first, between, heads, tokens, dim


def attention(
    graph: Graph,
    q: Ref,
    k: Ref,
    v: Ref,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: Any = None,
    **more: Any,
) -> Ref:
    if mask is not None or dropout or causal or any(more.values()):
        raise Unsupported("attention with a mask")
    views = [_head_view(graph, r) for r in (q, k, v)]
    (qv, q_at, q_head, heads, tokens, dim), (kv, k_at, k_head, *k_size), (vv, v_at, v_head, *v_size) = views
    if k_size[0] != heads or v_size[0] != heads or k_size[1] != v_size[1] or k_size[2] != dim:
        raise Unsupported("attention of unequal heads")
    attrs = {
        "q_at": q_at, "k_at": k_at, "v_at": v_at, "q_head": q_head, "k_head": k_head, "v_head": v_head, "heads": heads,
        "dim": dim, "value_dim": v_size[2], "scale": float(dim**-0.5 if scale is None else scale),
    }  # fmt: skip
    made = emit(graph, "attention", [qv, kv, vv], (tokens, heads * v_size[2]), attrs=attrs)
    view = made.view.reshape(IMAGES, tokens, heads, v_size[2]).transpose(0, 2, 1, 3)
    return Ref(made.value, view, made.count)
