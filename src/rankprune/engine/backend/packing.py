"""Packs the nonzeros of a layer in the order in which its kernel reads them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from rankprune.engine.graph.graph import Unsupported, Weight
from rankprune.engine.graph.target import REACH

from .generated import Code
from .native import LANES

# Maximum height (rows in registers) by floats per vector and by width (output channels at once).
TALLEST = {8: {1: 14, 2: 6, 4: 3}, 16: {1: 16, 4: 12}}
JIT_REACH = 1 << 23  # rows that an offset in generated code can address
JIT_WIDEST = 30  # output channels of a chunk whose code is generated
JIT_TALLEST = 64  # rows of a task with generated code; they need no registers


@dataclass(frozen=True)
class Choice:
    """The kernel of a layer.

    Attributes:
        width: Output channels that are computed at once; more than 4 if code is generated for the layer.
        height: Rows that are computed at once.
        block: Input channels per block; 0 for all.
        dense: Multiply the zeros too.
        lanes: Floats per vector: 8 is one row, 16 is two.
    """

    width: int = 1
    height: int = 7
    block: int = 0
    dense: bool = False
    lanes: int = 8

    @property
    def jit(self) -> bool:
        """Whether machine code is generated for the layer."""
        return self.width > 4

    def __str__(self) -> str:
        if self.jit:
            return f"generated {self.width}x{self.height}"
        wide = " wide" if self.lanes == 16 else ""
        blocks = f" blocks of {self.block}" if self.block else ""
        return f"{'dense' if self.dense else 'sparse'} {self.width}x{self.height}{wide}{blocks}"


T = TypeVar("T")


@dataclass(frozen=True)
class ByLayout(Generic[T]):
    """A value for each of the two layouts.

    Attributes:
        one: For one image at a time.
        eight: For eight images at once, one per lane of a vector.
    """

    one: T
    eight: T

    def of(self, eight: bool) -> T:
        """Return the value of a layout.

        Args:
            eight: Eight images at once, or one.

        Returns:
            Its value.
        """
        return self.eight if eight else self.one


KernelPlan = ByLayout[dict[int, Choice]]  # the kernel of each layer, by the index of its node


@dataclass(frozen=True)
class Packed:
    """The arrays of a layer: for each (block, chunk of output channels) the list of its taps with offsets and values.

    Attributes:
        values: Values of the taps, (taps, width); (taps,) if code is generated.
        offsets: Offset of each tap's input from the list's base, in rows, or in floats if code is generated, (taps,).
        starts: First tap of each list, (lists + 1,).
        base: Lowest input of each list, in the unit of the offsets, (lists,).
        blocks: Number of blocks of input channels.
        channels: Output channel of each tap within its chunk, if code is generated; otherwise a tap is of all of them.
        masks: Number of the mask of each tap, if code is generated and some taps need one.
    """

    values: np.ndarray
    offsets: np.ndarray
    starts: np.ndarray
    base: np.ndarray
    blocks: int
    channels: np.ndarray | None = None
    masks: np.ndarray | None = None

    def splits(self, groups: int, choice: Choice) -> np.ndarray:
        """Split the output chunks into groups of nearly equal work.

        Args:
            groups: Number of groups.
            choice: The kernel.

        Returns:
            Bounds of the groups, (groups + 1,).
        """
        counts = np.diff(self.starts).reshape(self.blocks, -1)  # (blocks, chunks)
        return balance(counts.sum(0) + (3 * choice.width if choice.jit else 2 * self.blocks), groups)


def fit(
    choice: Choice, outputs: int, groups: int, rows: int, channel_rows: int, channels: int, widest: int, jit: bool
) -> Choice:
    """Return the nearest valid choice for a layer, so that choices from a file are harmless.

    Args:
        choice: The requested kernel.
        outputs: Output channels.
        groups: Groups of the convolution.
        rows: Rows of a slab of the result.
        channel_rows: Rows between two input channels.
        channels: Input channels of a group.
        widest: Floats of the widest vectors that the instruction set allows.
        jit: Code may be generated.

    Returns:
        A valid choice.
    """
    if choice.jit and jit and widest == 16 and groups == 1 and rows > 1 and channels * channel_rows <= JIT_REACH:
        width = jit_width(outputs, min(choice.width, JIT_WIDEST))
        if width > 4:
            height = min(max(2, choice.height), JIT_TALLEST, rows + rows % 2)
            return Choice(width, height + height % 2, lanes=16)
    lanes = 16 if choice.lanes == 16 and widest == 16 and rows > 1 else 8
    tallest = TALLEST[lanes]
    width = choice.width if choice.width in tallest and (outputs // groups) % choice.width == 0 else 1
    height = max(1, min(choice.height, tallest[width], rows))
    if lanes == 16:
        height = min(tallest[width], -(-height // 2) * 2)  # a vector holds two rows
    block = 0 if groups > 1 or choice.block < 1 or choice.block >= channels else choice.block
    if groups == 1 and (block or channels) * channel_rows > REACH:
        block = max(1, REACH // channel_rows)
    return replace(choice, width=width, height=height, block=block, lanes=lanes)


def jit_width(outputs: int, most: int = JIT_WIDEST) -> int:
    """Return the width of chunks that share the output channels evenly.

    Args:
        outputs: Output channels.
        most: Maximum width.

    Returns:
        The width.
    """
    return -(-outputs // -(-outputs // most))


def packing_bytes(weight: Weight, choice: Choice) -> int:
    """Return an upper bound of the memory that `pack` needs.

    Args:
        weight: The weight.
        choice: Its kernel.

    Returns:
        Bytes.
    """
    entries = weight.size if choice.dense else weight.nonzeros
    outputs, inputs = weight.shape[:2]
    if choice.jit:
        return 112 * entries + 128 * outputs  # of which up to 24 and 64 are code
    lists = -(-inputs // (choice.block or inputs)) * (outputs // choice.width)
    return (80 + 4 * choice.width) * entries + 40 * lists


def pack(
    weight: Weight, taps: np.ndarray, channel: int, groups: int, choice: Choice, masks: np.ndarray | None = None
) -> Packed:
    """Pack a weight for its kernel.

    Args:
        weight: (outputs, inputs of a group, kh, kw) or (outputs, inputs).
        taps: Offset of each tap of the window, in floats, (kh, kw); whole rows unless code is generated.
        channel: Floats between two input channels.
        groups: Groups of the convolution.
        choice: The kernel.
        masks: Number of the mask of each tap of the window, (kh * kw,); None if none needs one.

    Returns:
        The arrays.

    Raises:
        Unsupported: The taps of one list are too far apart for 16-bit offsets.
    """
    outputs, inputs = weight.shape[:2]
    window = taps.size
    if choice.dense:
        values = weight.dense().reshape(-1)
        position = np.arange(values.size, dtype=np.int64)
    else:
        nonzero, values = weight.entries()
        position = nonzero.astype(np.int64)
    out, rest = np.divmod(position, inputs * window)  # (nonzeros,) each
    source = rest // window
    floats = (source + out // (outputs // groups) * inputs) * channel + taps.reshape(-1)[rest % window]
    if choice.jit:
        return _pack_jit(values, floats, out, outputs, choice.width, None if masks is None else masks[rest % window])
    rows = floats // LANES
    block = choice.block or inputs
    blocks = -(-inputs // block)
    chunks = outputs // choice.width
    lists = source // block * chunks + out // choice.width
    if choice.width == 1:
        if blocks > 1:
            order = np.argsort(lists, kind="stable")
            lists, rows, values = lists[order], rows[order], values[order]
    else:
        # The output channels of a chunk share a list, which has every tap that any of them has.
        _, first, inverse = np.unique(lists * (inputs * window) + rest, return_index=True, return_inverse=True)
        shared = np.zeros((first.size, choice.width), np.float32)  # (taps, width)
        shared[inverse, out % choice.width] = values
        lists, rows, values = lists[first], rows[first], shared.reshape(-1)
    counts = np.bincount(lists, minlength=blocks * chunks)
    starts = np.zeros(blocks * chunks + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    base = np.zeros(blocks * chunks, np.int64)
    full = np.flatnonzero(counts)
    if full.size:
        base[full] = np.minimum.reduceat(rows, starts[full])
    offsets = rows - base[lists]
    if offsets.size and offsets.max() >= REACH:
        raise Unsupported("the taps of one output lie too far apart for 16-bit offsets")
    return Packed(np.ascontiguousarray(values, np.float32), offsets.astype(np.uint16), starts, base, blocks)


def _pack_jit(
    values: np.ndarray, floats: np.ndarray, out: np.ndarray, outputs: int, width: int, masks: np.ndarray | None
) -> Packed:
    """Sort the taps of each chunk by input, because the code loads each input once."""
    chunk, channel = np.divmod(out, width)
    lowest, highest = (int(floats.min()), int(floats.max())) if floats.size else (0, 0)
    order = np.argsort((chunk * (highest - lowest + 1) + (floats - lowest)) * width + channel)
    starts = np.searchsorted(chunk, np.arange(-(-outputs // width) + 1))
    if highest - lowest >= JIT_REACH * LANES:
        raise Unsupported("the taps of one output lie too far apart for short offsets")
    return Packed(
        np.ascontiguousarray(values[order], np.float32),
        (floats[order] - lowest).astype(np.int32),
        starts.astype(np.int64),
        np.full(starts.size - 1, lowest, np.int64),
        1,
        channel[order].astype(np.uint8),
        None if masks is None else masks[order],
    )


class Packs:
    """Packed weights so far, shared by programs that differ only in how they distribute the work."""

    def __init__(self) -> None:
        self._packed: dict[tuple[object, ...], Packed] = {}
        self._code: dict[int, Code] = {}  # by the address of the values, which it keeps alive

    def get(
        self, node: int, weight: Weight, taps: np.ndarray, channel: int, groups: int, choice: Choice,
        masks: np.ndarray | None = None,
    ) -> Packed:  # fmt: skip
        """Return a packed weight, packed when first needed.

        Args:
            node: Index of the layer's node.
            weight: The weight.
            taps: Offset of each tap, in floats.
            channel: Floats between two input channels.
            groups: Groups of the convolution.
            choice: The kernel.
            masks: Number of the mask of each tap of the window.

        Returns:
            The arrays.
        """
        key = (node, taps.tobytes(), channel, choice.width, choice.block, choice.dense, masks is None)
        if key not in self._packed:
            self._packed[key] = pack(weight, taps, channel, groups, choice, masks)
        return self._packed[key]

    def code(
        self, packed: Packed, outputs: int, width: int, residual: bool, relu: bool, bias: np.ndarray
    ) -> np.ndarray:
        """Return the code of a layer, generated when first needed.

        Args:
            packed: Its packed weight.
            outputs: Output channels.
            width: Output channels of a chunk.
            residual: A residual is added.
            relu: ReLU is applied.
            bias: The bias.

        Returns:
            The memory of the code.
        """
        assert packed.channels is not None
        key = packed.values.ctypes.data
        if key not in self._code:
            arrays = [packed.values, bias, packed.offsets, packed.channels, packed.starts, packed.base]
            masks = [] if packed.masks is None else [packed.masks]
            self._code[key] = Code(outputs, width, residual, relu, arrays + masks)
        return np.asarray(self._code[key])


class PackedWeight(Weight):
    """A weight that is stored only as its kernel's arrays, so that it is not in memory twice.

    Args:
        weight: The original weight.
        packed: The arrays.
        taps: Offset of each tap, in floats.
        channel: Floats between two input channels.
        groups: Groups of the convolution.
        choice: The kernel.
    """

    def __init__(
        self, weight: Weight, packed: Packed, taps: np.ndarray, channel: int, groups: int, choice: Choice
    ) -> None:
        super().__init__(weight.shape, np.zeros(0, np.float32), None)
        unit = 1 if choice.jit else LANES  # of the packed offsets
        self._packed, self._taps, self._channel = packed, taps.reshape(-1) // unit, channel // unit
        self._groups = groups
        self._width, self._count = choice.width, weight.nonzeros

    @property
    def nonzeros(self) -> int:
        """Number of nonzeros."""
        return self._count

    def sound(self) -> bool:
        """Always true, because it was made from a valid weight."""
        return True

    def entries(self) -> tuple[np.ndarray, np.ndarray]:
        """Reconstruct positions and values of the nonzeros. A tap's offset is unique, so it gives channel and tap."""
        p, width = self._packed, self._width
        outputs, inputs = self.shape[:2]
        lists = np.repeat(np.arange(p.base.size), np.diff(p.starts))
        rows = p.offsets.astype(np.int64) + p.base[lists]  # (taps,)
        if p.channels is None:
            out = (lists % (outputs // width))[:, None] * width + np.arange(width)  # (taps, width)
        else:
            out = (lists * width + p.channels)[:, None]  # (taps, 1)
        # A tap may reach beyond its channel (with eight images, into the next image row), so each tap is tried.
        order = np.argsort(self._taps, kind="stable")
        position = np.empty(out.shape, np.int64)
        first = out[:, 0] // (outputs // self._groups) * inputs
        known = np.zeros(rows.size, bool)
        for tap in order[::-1]:
            channel, rest = np.divmod(rows - self._taps[tap], self._channel)
            fits = ~known & (rest == 0) & (channel >= first) & (channel < first + inputs)
            inner = ((channel - first) * self._taps.size + tap)[fits]
            position[fits] = out[fits] * (inputs * self._taps.size) + inner[:, None]
            known |= fits
        values, flat = p.values, position.reshape(-1)
        order = np.argsort(flat, kind="stable")
        order = order[values[order] != 0]
        return flat[order].astype(np.int32), values[order]

    def plain(self) -> Weight:
        """Return an ordinary weight with the same values."""
        position, values = self.entries()
        if 2 * position.size > self.size:
            return Weight(self.shape, self.dense().reshape(-1), None)
        return Weight(self.shape, values, position)

    def arrays(self) -> list[np.ndarray]:
        """Return no arrays, because the program holds them."""
        return []


def balance(work: np.ndarray, groups: int) -> np.ndarray:
    """Split items into groups of nearly equal work.

    Args:
        work: Work of each item.
        groups: Number of groups.

    Returns:
        Bounds of the groups, (groups + 1,).
    """
    total = np.cumsum(work)
    inner = np.searchsorted(total, total[-1] * np.arange(1, groups) / groups, side="left") + 1
    return np.concatenate([[0], np.minimum(inner, work.size), [work.size]]).astype(np.int64)
