"""State while a graph is lowered: the kernel calls so far, and where each value is stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rankprune.engine.graph.graph import Graph, Node, Unsupported, Weight
from rankprune.engine.graph.limits import Meter

from .arena import Buffer
from .choice import Choice
from .direct import Masks
from .layout import Layout, eight_images, joined_rows, one_image
from .move import FLOATS, INTO_LANES, move
from .native import LANES, Params, View, fields
from .packs import Packs
from .window_layout import among_planes, frame


class Border(Params):
    """Parameters of the kernel that zeroes the frame of a value."""

    _fields_ = fields("int64_t at, slabs, channels, rows, top, bottom, left, right")


@dataclass(frozen=True)
class Call:
    """A kernel call that is complete except for the offsets of its buffers, which are not known until all calls are.

    Attributes:
        params: Returns the parameters, once the buffers have their offsets.
        tasks: Number of parallel tasks.
        arrays: Constants that the parameters point to.
    """

    params: Callable[[], Params]
    tasks: int
    arrays: Sequence[np.ndarray]


@dataclass(frozen=True)
class Source:
    """What a layer multiplies.

    Attributes:
        buffer: Where it is.
        view: Offset of its first number in the buffer, and strides.
        taps: Offset of each tap of the window, in floats, (kh, kw).
        step: Rows between the inputs of two successive rows of the result.
        in_slabs: It is in slabs of 8 columns, wherever the result goes.
        masks: Which taps reach beyond the edges; None if the edges are filled.
    """

    buffer: Buffer
    view: View
    taps: np.ndarray = field(default_factory=lambda: np.zeros((1, 1), np.int64))
    step: int = 1
    in_slabs: bool = False
    masks: Masks | None = None


class Generated(NamedTuple):
    """Code that was generated for a layer."""

    code: np.ndarray
    chunks: int  # where its tasks begin: 1 if all begin with the first chunk, otherwise spread over so many
    arrays: list[np.ndarray]  # the constants of its call


@dataclass
class Lowering:
    """State while a graph is lowered.

    Attributes:
        graph: The network.
        eight: Eight images at once, one per lane.
        threads: Number of threads.
        lanes: Floats of the widest vectors.
        jit: Code may be generated.
        choices: The kernel of each layer, by the index of its node.
        packs: Packed weights to share with other programs.
        meter: Counts memory and work against the limits.
        joined: Images whose rows follow one another, instead of slabs of 8 columns.
        images: Images that lie one below the other in the values of the current node.
        handed: What convolutions read that the stride divided image by image, by the index of their node.
        moving: Buffers in which each image has its own part, and the floats of one image.
        calls: The kernel calls so far.
        of_node: Index of the node of each call; -1 for inputs and outputs.
        buffers: All buffers of the arena.
        layouts: Layout of each value.
        places: Buffer of each value.
        plain: Graph inputs that are still in their own order [channel][y][x].
        in_planes: Values that were written where the convolution that reads them needs them.
        scratch: Floats of scratch memory per thread.
        node: Index of the node that is being lowered.
        used: The kernel of each layer, as it was made valid.
        rows: Rows of a slab that each layer's kernel computes.
        packed: The packed weight of each layer.
        codes: Generated code of the layers so far.
    """

    graph: Graph
    eight: bool
    threads: int
    lanes: int
    jit: bool
    choices: dict[int, Choice]
    packs: Packs
    meter: Meter
    joined: frozenset[int]
    images: int = 1
    handed: dict[int, Source] = field(default_factory=dict)
    moving: list[tuple[Buffer, int]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    of_node: list[int] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    layouts: dict[int, Layout] = field(default_factory=dict)
    places: dict[int, Buffer] = field(default_factory=dict)
    plain: set[int] = field(default_factory=set)
    in_planes: set[int] = field(default_factory=set)
    scratch: int = 0
    node: int = -1
    used: dict[int, Choice] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    packed: dict[int, Weight] = field(default_factory=dict)
    codes: list[Generated] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.users = self.graph.users()

    def buffer(self, size: int) -> Buffer:
        """Reserve memory from the current call on.

        Args:
            size: Floats.

        Returns:
            A buffer whose offset is not known yet.
        """
        step = len(self.calls)
        self.meter.need(4 * size)
        buffer = Buffer(size + LANES, step, step)
        self.buffers.append(buffer)
        return buffer

    def each_image(self, buffer: Buffer, floats: int) -> None:
        """Give each image its own part of a buffer; the calls so far are repeated for every image.

        Args:
            buffer: The buffer, which is then in use from the first call on.
            floats: Floats between two images.
        """
        buffer.first = 0
        self.moving.append((buffer, floats))

    def call(
        self, params: Callable[[], Params], tasks: int, uses: Sequence[Buffer], arrays: Sequence[np.ndarray] = (),
        work: int | None = None,
    ) -> None:  # fmt: skip
        """Append a kernel call.

        Args:
            params: Returns the parameters, once the buffers have their offsets.
            tasks: Number of parallel tasks.
            uses: Buffers that it reads or writes.
            arrays: Constants that the parameters point to.
            work: Multiply-adds, or numbers moved; by default each number of the buffers counts once.
        """
        self.meter.spend(sum(buffer.size for buffer in uses) if work is None else work)
        self.meter.keep(sum(array.nbytes for array in arrays))
        step = len(self.calls)
        for buffer in uses:
            buffer.last = max(buffer.last, step)
        self.calls.append(Call(params, tasks, arrays))
        self.of_node.append(self.node)

    def output(self, value: int, layout: Layout | None = None) -> tuple[Layout, Buffer]:
        """Reserve memory for a node's result, with the frame that its users need.

        Args:
            value: The result.
            layout: Its layout; by default the usual one.

        Returns:
            Layout and buffer.
        """
        if value in self.places:
            return self.layouts[value], self.places[value]
        layout = self.layout_of(value, layout)
        self.layouts[value], self.places[value] = layout, self.buffer(layout.size)
        if self.eight:
            self._border(value)
        return layout, self.places[value]

    def _border(self, value: int) -> None:
        """Zero the frame of a value, because its memory may have been used by another value."""
        top, bottom, left, right = frame(self.graph, self.users, value)
        if not top + bottom + left + right:
            return
        layout, target = self.layouts[value], self.places[value]
        slabs, rows = top + layout.slabs + bottom, layout.channel // LANES
        self.call(lambda: Border(target.at, slabs, layout.channels, rows, top, bottom, left, right), slabs, [target])

    def layout_of(self, value: int, layout: Layout | None) -> Layout:
        """Return the layout given, or the usual one of a value.

        Args:
            value: The value.
            layout: A layout, or None.

        Returns:
            The layout.
        """
        if layout is not None:
            return layout
        shape = self.graph.shapes[value]
        if value in self.joined:
            return joined_rows(shape)
        return eight_images(shape, frame(self.graph, self.users, value)) if self.eight else one_image(shape)

    def home(self, node: Node) -> Layout | None:
        """Return a layout of a node's result that saves its user a copy.

        Args:
            node: The node.

        Returns:
            The layout, or None if there is no such layout.
        """
        value = node.output
        if len(self.graph.shapes[value]) != 3 or value in self.joined:
            return None
        layout = among_planes(self.graph, self.users, self.meter, value)
        if layout is not None:
            self.in_planes.add(value)
        return layout

    def input(self, value: int) -> tuple[Layout, Buffer]:
        """Return where a value is stored. A graph input is converted to the engine's layout when it is first needed.

        Args:
            value: The value.

        Returns:
            Layout and buffer.
        """
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
        """Return the offset of each number of a value as 32-bit indices.

        Args:
            layout: The value's layout.

        Returns:
            int32, (numbers,).

        Raises:
            Unsupported: The value is too large for 32-bit indices.
        """
        if layout.size >= 1 << 31:
            raise Unsupported(f"a value that takes {layout.size} floats is too large for 32-bit indices")
        self.meter.need(24 * math.prod(layout.shape))
        return np.ascontiguousarray(np.broadcast_to(layout.index(), layout.shape).reshape(-1), np.int32)
