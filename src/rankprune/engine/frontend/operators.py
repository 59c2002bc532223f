"""Handlers of ATen operators, by name.

A handler takes the graph, to which it appends nodes, and the arguments of its ATen operator, in which tensors that the
engine computes are `Ref`. It returns a `Ref` of the result, and raises Unsupported to leave the call to torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankprune.engine.graph.graph import Unsupported

from . import (
    operators_activation,
    operators_attention,
    operators_elementwise,
    operators_layer,
    operators_pool,
    operators_reduce,
    operators_resample,
    operators_view,
    operators_volume,
)

_PARTS = (
    operators_layer, operators_pool, operators_elementwise, operators_activation, operators_attention,
    operators_reduce, operators_resample, operators_view, operators_volume,
)  # fmt: skip


def find(name: str) -> Callable[..., Any]:
    """Find the handler of an operator; in-place operators have the same handler.

    Args:
        name: Full name of the operator, such as "aten.add.Tensor".

    Returns:
        The handler.

    Raises:
        Unsupported: There is none.
    """
    base = name.split(".")[1] if name.startswith("aten.") else name
    for part in _PARTS:
        for key in (base, base.removesuffix("_")):
            if key in part.HANDLERS:
                return part.HANDLERS[key]
    raise Unsupported(name)


def moves(name: str) -> bool:
    """Whether an operator only moves numbers.

    Args:
        name: Full name of the operator.

    Returns:
        True for views, concatenations and the like.
    """
    return find(name) in operators_view.HANDLERS.values()
