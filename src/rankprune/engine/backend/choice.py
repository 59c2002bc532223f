"""The kernel of each layer: how many channels, rows and floats it computes at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from rankprune.engine.graph.target import REACH

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
