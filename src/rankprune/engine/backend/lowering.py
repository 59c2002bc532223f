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
from .lower_stacked import hand_all
from .lower_state import Call, Lowering
from .move import FLOATS, OUT_OF_LANES, move
from .native import LANES, Program, lanes
from .packs import Packs
from .stacked import stack


@dataclass(frozen=True)
class Lowered:
    """A program, with the places of its inputs and outputs in the arena.

    Attributes:
        program: The kernel calls.
        inputs: (offset in the arena, floats per image) of each input.
        outputs: The same of each output.
        batch: Images per run.
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
    packs: Packs | None = None, limits: Limits | None = None, joined: frozenset[int] | None = None, images: int = 1,
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
        images: Images per run, whose last layers run at once (`stacked.py`).

    Returns:
        The program.

    Raises:
        Unsupported: This layout cannot run the graph.
        Unsound: The graph is invalid.
    """
    check(graph)
    batch = LANES if eight else images
    widest, jit = lanes(variant), jit_allowed()
    if joined is None:
        joined = frozenset() if eight else joined_values(graph, widest, jit)
    together, outputs, first = None, graph.outputs, 0
    if images > 1:
        together = stack(graph, images, widest, jit)
        if together is None:
            raise Unsupported("no layers that can run for several images at once")
        graph, outputs, first = together.graph, together.outputs, together.first
        choices = {**{i: c for i, c in (choices or {}).items() if i < together.first}, **together.choices}
        joined = joined - together.late | frozenset(v for v in together.late if len(graph.shapes[v]) == 3)
    meter = Meter(limits or Limits(), batch)
    state = Lowering(graph, eight, threads, widest, jit, choices or {}, packs or Packs(), meter, joined)
    ins, outs = [], []
    for value in graph.inputs:
        count = math.prod(graph.shapes[value])
        state.layouts[value] = flat((count,))
        state.places[value] = state.buffer(batch * count)
        state.plain.add(value)
        ins.append((state.places[value], count))
    for state.node, node in enumerate(graph.nodes[:first]):
        _handler(node)(state, node)
    if together is not None:
        hand_all(state, together, images)
        meter.spend((images - 1) * meter.work)
        for source, count in ins:
            state.each_image(source, count)
            source.last = len(state.calls)
    repeated = len(state.calls)
    for state.node, node in enumerate(graph.nodes[first:], first):
        _handler(node)(state, node)
    state.node = -1
    for value in outputs:
        count = math.prod(graph.shapes[value])
        layout, source = state.input(value)
        target = state.buffer(batch * count)
        index = state.table(layout)
        if len(layout.shape) == 3:
            index = index.reshape(layout.shape[0], images, -1).swapaxes(0, 1).reshape(-1)
        move(state.call, source, target, index, np.arange(count, dtype=np.int32), OUT_OF_LANES if eight else FLOATS)
        outs.append((target, count // images))
    for target, _ in outs:
        target.last = len(state.calls)
    for source, _ in ins:
        source.first = 0
    arena = place(state.buffers)
    state.meter.need(4 * (arena + state.scratch))
    program = Program(variant, threads, arena, state.scratch)
    for image in range(images):
        _add(program, state.calls[:repeated])
        for buffer, floats in state.moving:
            buffer.at += floats if image + 1 < images else (1 - images) * floats
    _add(program, state.calls[repeated:])
    return Lowered(
        program,
        [(b.at, n) for b, n in ins],
        [(b.at, n) for b, n in outs],
        batch,
        state.of_node[:repeated] * images + state.of_node[repeated:],
        state.used,
        state.rows,
        state.packed,
        arena,
    )


def _add(program: Program, calls: list[Call]) -> None:
    for call in calls:
        program.add(call.params(), call.tasks, call.arrays)


def _handler(node: Node) -> Callable[[Lowering, Node], None]:
    for part in (lower_window, lower_other, lower_elementwise, lower_move, lower_product):
        if node.op in part.HANDLERS:
            return part.HANDLERS[node.op]
    raise Unsupported(f"the kernels have no operator {node.op}")
