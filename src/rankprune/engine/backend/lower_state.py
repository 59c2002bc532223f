"""State while a graph is lowered: the kernel calls so far, and where each value lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rankprune.engine.graph.graph import Graph, Node, Unsupported, Weight
from rankprune.engine.graph.limits import Meter

from .arena import Buffer
from .layout import Layout, eight_images, one_image
from .move import FLOATS, INTO_LANES, move
from .native import LANES, Params, fields
from .packing import Choice, Packs
from .window_layout import among_planes, frame


class Border(Params):
    _fields_ = fields("int64_t at, slabs, channels, rows, top, bottom, left, right")


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
    eight: bool
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
        if self.eight:
            self._border(value)
        return layout, self.places[value]

    def _border(self, value: int) -> None:
        """Zero the frame of a value, since its place was another's before."""
        top, bottom, left, right = frame(self.graph, self.users, value)
        if not top + bottom + left + right:
            return
        layout, target = self.layouts[value], self.places[value]
        slabs, rows = top + layout.slabs + bottom, layout.channel // LANES
        self.call(lambda: Border(target.at, slabs, layout.channels, rows, top, bottom, left, right), slabs, [target])

    def layout_of(self, value: int, layout: Layout | None) -> Layout:
        """The layout given, or the usual one of a value."""
        if layout is not None:
            return layout
        shape = self.graph.shapes[value]
        return eight_images(shape, frame(self.graph, self.users, value)) if self.eight else one_image(shape)

    def home(self, node: Node) -> Layout | None:
        """A layout of this node's result that spares its user a copy."""
        value = node.output
        if len(self.graph.shapes[value]) != 3:
            return None
        found = among_planes(self.graph, self.users, self.meter, value)
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
            move(self.call, source, target, index, to, INTO_LANES if self.eight else FLOATS)
        return self.layouts[value], self.places[value]

    def table(self, layout: Layout) -> np.ndarray:
        """Where each number of a value lies, as 32-bit indices for a gather."""
        if layout.size >= 1 << 31:
            raise Unsupported(f"a value that takes {layout.size} floats is too large for 32-bit indices")
        self.meter.need(24 * math.prod(layout.shape))
        return np.ascontiguousarray(np.broadcast_to(layout.index(), layout.shape).reshape(-1), np.int32)
