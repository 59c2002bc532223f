"""Lowers a graph to a program of kernel calls that share one arena."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rankprune.engine.graph.graph import Graph, Node, Unsupported, Weight
from rankprune.engine.graph.limits import Limits, Meter
from rankprune.engine.graph.validate import check

from . import lower_elementwise, lower_move, lower_other, lower_product, lower_window
from .arena import place
from .choice import Choice
from .generated import jit_allowed
from .joined import joined_values
from .layout import flat
from .lower_state import Lowering
from .move import FLOATS, OUT_OF_LANES, move
from .native import LANES, Program, lanes
from .packs import Packs


@dataclass(frozen=True)
class Lowered:
    """A program, with the places of its inputs and outputs in the arena.

    Attributes:
        program: The kernel calls.
        inputs: (offset in the arena, floats per image) of each input.
        outputs: The same of each output.
        batch: Images per run, 1 or 8.
        of_node: Index of the node that each call belongs to; -1 for inputs and outputs.
        choices: The kernel of each layer, by the index of its node.
        rows: Rows of a slab that each layer's kernel computes.
        packed: The weight of each layer as the program holds it.
        arena: Floats of the arena.
    """

    program: Program
    inputs: list[tuple[int, int]]
    outputs: list[tuple[int, int]]
    batch: int
    of_node: list[int]
    choices: dict[int, Choice]
    rows: dict[int, int]
    packed: dict[int, Weight]
    arena: int


def lower(
    graph: Graph, eight: bool, variant: str, threads: int, choices: dict[int, Choice] | None = None,
    packs: Packs | None = None, limits: Limits | None = None, joined: frozenset[int] | None = None,
) -> Lowered:  # fmt: skip
    """Lower a graph.

    Args:
        graph: The network; it is checked first.
        eight: Eight images at once, or one.
        variant: The instruction set.
        threads: Number of threads.
        choices: The kernel of each layer, by the index of its node; the others get a default.
        packs: Packed weights to share with other programs of the same graph.
        limits: Limits of memory and work.
        joined: Images whose rows follow one another; by default those where that saves time.

    Returns:
        The program.

    Raises:
        Unsupported: This layout cannot run the graph.
        Unsound: The graph is invalid.
    """
    check(graph)
    batch = LANES if eight else 1
    if joined is None:
        joined = frozenset() if eight else joined_values(graph, lanes(variant), jit_allowed())
    meter = Meter(limits or Limits(), batch)
    state = Lowering(
        graph, eight, threads, lanes(variant), jit_allowed(), choices or {}, packs or Packs(), meter, joined
    )
    ins, outs = [], []
    for value in graph.inputs:
        count = math.prod(graph.shapes[value])
        state.layouts[value] = flat((count,))
        state.places[value] = state.buffer(batch * count)
        state.plain.add(value)
        ins.append((state.places[value], count))
    for state.node, node in enumerate(graph.nodes):
        _handler(node)(state, node)
    state.node = -1
    for value in graph.outputs:
        count = math.prod(graph.shapes[value])
        layout, source = state.input(value)
        target = state.buffer(batch * count)
        index = state.table(layout)
        move(state.call, source, target, index, np.arange(count, dtype=np.int32), OUT_OF_LANES if eight else FLOATS)
        outs.append((target, count))
    for target, _ in outs:
        target.last = len(state.calls)
    for source, _ in ins:
        source.first = 0
    arena = place(state.buffers)
    state.meter.need(4 * (arena + state.scratch))
    program = Program(variant, threads, arena, state.scratch)
    for call in state.calls:
        program.add(call.params(), call.tasks, call.arrays)
    return Lowered(
        program,
        [(b.at, n) for b, n in ins],
        [(b.at, n) for b, n in outs],
        batch,
        state.of_node,
        state.used,
        state.rows,
        state.packed,
        arena,
    )


def _handler(node: Node) -> Callable[[Lowering, Node], None]:
    for part in (lower_window, lower_other, lower_elementwise, lower_move, lower_product):
        if node.op in part.HANDLERS:
            return part.HANDLERS[node.op]
    raise Unsupported(f"the kernels have no operator {node.op}")
