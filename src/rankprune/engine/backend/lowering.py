"""Turns a graph into a program of kernel calls over one arena."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rankprune.engine.graph.graph import Graph, Node, Unsupported, Weight
from rankprune.engine.graph.limits import Limits, Meter
from rankprune.engine.graph.validate import check

from . import lower_elementwise, lower_move, lower_other, lower_product, lower_window
from .arena import Buffer, place
from .layout import Layout, eight_images, flat, one_image
from .lower_move import FLOATS, INTO_LANES, OUT_OF_LANES, move
from .native import LANES, Params, Program, lanes
from .packing import Choice, Packs


@dataclass(frozen=True)
class Call:
    """One kernel call, complete but for the places of its buffers."""

    params: Callable[[], Params]
    tasks: int
    arrays: Sequence[np.ndarray]


@dataclass
class Lowering:
    """State while a graph is lowered. `images`: eight images at once, a lane each."""

    graph: Graph
    images: bool
    threads: int
    lanes: int  # of the widest vectors
    choices: dict[int, Choice]  # by the node's index
    packs: Packs
    meter: Meter
    calls: list[Call] = field(default_factory=list)
    of_node: list[int] = field(default_factory=list)  # node index of each call; -1: input or output
    buffers: list[Buffer] = field(default_factory=list)
    layouts: dict[int, Layout] = field(default_factory=dict)
    places: dict[int, Buffer] = field(default_factory=dict)
    plain: set[int] = field(default_factory=set)  # graph inputs that still lie as they came: [channel][y][x]
    in_planes: set[int] = field(default_factory=set)  # values made where the convolution that reads them wants them
    scratch: int = 0
    node: int = -1
    used: dict[int, Choice] = field(default_factory=dict)
    packed: dict[int, Weight] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.users = self.graph.users()

    def buffer(self, size: int) -> Buffer:
        step = len(self.calls)
        self.meter.need(4 * size)
        made = Buffer(size + LANES, step, step)
        self.buffers.append(made)
        return made

    def call(
        self, params: Callable[[], Params], tasks: int, uses: Sequence[Buffer], arrays: Sequence[np.ndarray] = (),
        work: int | None = None,
    ) -> None:  # fmt: skip
        """`work`: multiply-adds, or numbers moved; unless said, each number of the buffers is used once."""
        self.meter.spend(sum(buffer.size for buffer in uses) if work is None else work)
        self.meter.keep(sum(array.nbytes for array in arrays))
        step = len(self.calls)
        for buffer in uses:
            buffer.last = max(buffer.last, step)
        self.calls.append(Call(params, tasks, arrays))
        self.of_node.append(self.node)

    def output(self, value: int, layout: Layout | None = None) -> tuple[Layout, Buffer]:
        """A place for a node's result, framed as its users need it."""
        if value in self.places:
            return self.layouts[value], self.places[value]
        layout = self.layout_of(value, layout)
        self.layouts[value], self.places[value] = layout, self.buffer(layout.size)
        if self.images:
            lower_window.border(self, value)
        return layout, self.places[value]

    def layout_of(self, value: int, layout: Layout | None) -> Layout:
        """The layout given, or the usual one of a value."""
        if layout is not None:
            return layout
        shape = self.graph.shapes[value]
        return eight_images(shape, lower_window.frame(self, value)) if self.images else one_image(shape)

    def home(self, node: Node) -> Layout | None:
        """A layout of this node's result that spares its user a copy."""
        value = node.output
        if len(self.graph.shapes[value]) != 3:
            return None
        found = lower_window.among_planes(self, value)
        if found is not None:
            self.in_planes.add(value)
        return found

    def input(self, value: int) -> tuple[Layout, Buffer]:
        """Layout and place of a value; a graph input is brought into the engine's layout when first asked for."""
        if value in self.plain:
            self.plain.discard(value)
            source = self.places.pop(value)
            self.layouts.pop(value)
            layout, target = self.output(value)
            to = self.table(layout)
            index = np.arange(to.size, dtype=np.int32)
            move(self, source, target, index, to, INTO_LANES if self.images else FLOATS)
        return self.layouts[value], self.places[value]

    def table(self, layout: Layout) -> np.ndarray:
        """Where each number of a value lies, as 32-bit indices for a gather."""
        if layout.size >= 1 << 31:
            raise Unsupported(f"a value that takes {layout.size} floats is too large for 32-bit indices")
        self.meter.need(24 * math.prod(layout.shape))
        return np.ascontiguousarray(np.broadcast_to(layout.index(), layout.shape).reshape(-1), np.int32)


@dataclass(frozen=True)
class Lowered:
    """A program with where its inputs and outputs lie (place, floats of one image)."""

    program: Program
    inputs: list[tuple[int, int]]
    outputs: list[tuple[int, int]]
    images: int
    of_node: list[int]
    choices: dict[int, Choice]
    packed: dict[int, Weight]  # each layer's weight, as the program holds it
    arena: int


def lower(
    graph: Graph, images: bool, variant: str, threads: int, choices: dict[int, Choice] | None = None,
    packs: Packs | None = None, limits: Limits | None = None,
) -> Lowered:  # fmt: skip
    """Raises Unsupported where this layout cannot serve the graph, Unsound where the graph itself is wrong."""
    check(graph)
    copies = LANES if images else 1
    state = Lowering(
        graph, images, threads, lanes(variant), choices or {}, packs or Packs(), Meter(limits or Limits(), copies)
    )
    ins, outs = [], []
    for value in graph.inputs:
        count = math.prod(graph.shapes[value])
        state.layouts[value] = flat((count,))
        state.places[value] = state.buffer(copies * count)
        state.plain.add(value)
        ins.append((state.places[value], count))
    for state.node, node in enumerate(graph.nodes):
        _handler(node)(state, node)
    state.node = -1
    for value in graph.outputs:
        count = math.prod(graph.shapes[value])
        layout, source = state.input(value)
        target = state.buffer(copies * count)
        index = state.table(layout)
        move(state, source, target, index, np.arange(count, dtype=np.int32), OUT_OF_LANES if images else FLOATS)
        outs.append((target, count))
    for target, _ in outs:
        target.last = len(state.calls)
    for source, _ in ins:
        source.first = 0
    arena = place(state.buffers)
    state.meter.need(4 * (arena + state.scratch))
    program = Program(variant, threads, arena, state.scratch)
    for made in state.calls:
        program.add(made.params(), made.tasks, made.arrays)
    return Lowered(
        program,
        [(b.at, n) for b, n in ins],
        [(b.at, n) for b, n in outs],
        copies,
        state.of_node,
        state.used,
        state.packed,
        arena,
    )


def _handler(node: Node) -> Callable[[Lowering, Node], None]:
    for part in (lower_window, lower_other, lower_elementwise, lower_move, lower_product):
        if node.op in part.HANDLERS:
            return part.HANDLERS[node.op]
    raise Unsupported(f"the kernels have no operator {node.op}")
