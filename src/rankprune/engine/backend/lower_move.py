"""Lowers gathers and concatenations to moves of numbers."""

from __future__ import annotations

import numpy as np

from rankprune.engine.graph import strided
from rankprune.engine.graph.graph import Node

from .lower_state import Lowering
from .move import FLOATS, ROWS, move


def gather(state: Lowering, node: Node) -> None:
    """Lower a gather: any reordering of numbers, some of which may come from a constant.

    Args:
        state: The state of the lowering.
        node: The node.
    """
    layout, source = state.input(node.inputs[0])
    out, target = state.output(node.output)
    to, places = state.table(out), state.table(layout)
    how = ROWS if state.eight else FLOATS
    index, fixed = indices(node, to.size)
    known = index >= 0
    if not known.all():
        state.meter.need(16 * to.size)
    move(state.call, source, target, places[index[known]], to[known], how)
    if fixed is not None:
        constant = np.ascontiguousarray(node.arrays["constant"].reshape(-1))
        here = fixed >= 0
        move(state.call, None, target, fixed[here].astype(np.int32), to[here], how, constant)


def indices(node: Node, size: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the indices of a gather.

    Args:
        node: The gather.
        size: Numbers of its result.

    Returns:
        The index into the input and into the constant; -1 where a number comes from the other. None without a constant.
    """
    if "index" in node.arrays:
        index = node.arrays["index"].reshape(-1).astype(np.int64)
        fixed = -1 - index if "constant" in node.arrays else None
        return index, fixed
    index = strided.expand(strided.from_array(node.arrays["nests"]), size)
    if "constant" not in node.arrays:
        return np.maximum(index, 0), None
    return index, strided.expand(strided.from_array(node.arrays["constant_nests"]), size)


def concat(state: Lowering, node: Node) -> None:
    """Lower a concatenation.

    Args:
        state: The state of the lowering.
        node: The node.
    """
    out, target = state.output(node.output)
    shape = state.graph.shapes[node.output]
    places = state.table(out).reshape(shape)
    axis, at = node.attrs["axis"], 0
    for value in node.inputs:
        size = state.graph.shapes[value][axis]
        layout, source = state.input(value)
        part = places.take(range(at, at + size), axis).reshape(-1)
        move(state.call, source, target, state.table(layout), part, ROWS if state.eight else FLOATS)
        at += size


HANDLERS = {"gather": gather, "concat": concat}
