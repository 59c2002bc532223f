"""Checks that a graph is valid: every shape, count, attribute and index."""

from __future__ import annotations

import math

from rankprune._util import shorten

from .graph import Graph
from .operator_table import OPERATORS
from .schema import Unsound

__all__ = ["Unsound", "check"]

MOST_FLOATS = 1 << 28  # floats of one value, so that 32-bit indices suffice for eight images
MOST_DIMENSIONS = 8
MOST_NODES = 10_000


def check(graph: Graph) -> None:
    """Check a graph.

    Args:
        graph: The graph.

    Raises:
        Unsound: The graph is invalid; the message names the operator.
    """
    _need(len(graph.nodes) <= MOST_NODES, f"{len(graph.nodes)} operators, more than {MOST_NODES}")
    known: set[int] = set()

    def make(value: int, maker: str) -> None:
        _need(0 <= value < len(graph.shapes) and value not in known, f"{maker} writes value {value}")
        shape = graph.shapes[value]
        sound = len(shape) <= MOST_DIMENSIONS and all(n > 0 for n in shape) and math.prod(shape) < MOST_FLOATS
        _need(sound, f"a value of shape {shorten(shape)}")
        known.add(value)

    for value in graph.inputs:
        make(value, "the network's input")
    _need(bool(graph.inputs) and bool(graph.outputs), "no inputs or no outputs")
    for node in graph.nodes:
        where = f"operator {shorten(f'{node.op} {node.name}'.strip())}"
        _need(node.op in OPERATORS, f"unknown {where}")
        _need(all(value in known for value in node.inputs), f"{where} reads what is not there yet")
        make(node.output, where)
        try:
            OPERATORS[node.op].check(node, [graph.shapes[v] for v in node.inputs], graph.shapes[node.output])
        except Unsound as error:
            raise Unsound(f"wrong: {where} {error}") from None
    _need(len(graph.outputs) <= MOST_NODES and all(v in known for v in graph.outputs), "an output that is not there")


def _need(sound: bool, what: str) -> None:
    if not sound:
        raise Unsound(f"wrong: {what}")
