"""What each ATen operator is in the engine's graph. A handler raises Unsupported to leave a call to torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankprune.engine.graph.graph import Unsupported

from . import (
    operators_attention,
    operators_elementwise,
    operators_layer,
    operators_reduce,
    operators_resample,
    operators_view,
    operators_volume,
)

_PARTS = (
    operators_layer, operators_elementwise, operators_attention, operators_reduce, operators_resample, operators_view,
    operators_volume,
)  # fmt: skip


def find(name: str) -> Callable[..., Any]:
    """The handler of an operator by its full name; in-place ones are the same as the others."""
    base = name.split(".")[1] if name.startswith("aten.") else name
    for part in _PARTS:
        for key in (base, base.removesuffix("_")):
            if key in part.HANDLERS:
                return part.HANDLERS[key]
    raise Unsupported(name)


def moves(name: str) -> bool:
    """Whether an operator only moves numbers."""
    return find(name) in operators_view.HANDLERS.values()
