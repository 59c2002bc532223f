"""Memory layout of a value: [slab][channel][row][8 lanes], for one image or for eight at once.

One image [C, H, W]: a slab is a block of 8 columns, a row is an image row, a lane is a column of the block.
Tokens [T, C]: one slab, whose rows hold 8 tokens each.
Eight images: a slab is an image row, a row is a column, a lane is an image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rankprune.engine.graph.graph import Shape

from .native import LANES, View

LINE = 16  # floats in a cache line


@dataclass(frozen=True)
class Layout:
    """Extents and strides of a value; all strides are in floats.

    Attributes:
        shape: Logical shape of the value, without the batch.
        eight: Lanes are images.
        slabs: Number of slabs.
        channels: Number of channels.
        rows: Rows of a slab.
        slab: Stride between slabs.
        channel: Stride between channels.
        origin: Offset of the first number.
        size: Floats of the whole value.
        joined: An image whose rows follow one another, instead of slabs of 8 columns.
    """

    shape: Shape
    eight: bool
    slabs: int
    channels: int
    rows: int
    slab: int
    channel: int
    origin: int
    size: int
    joined: bool = False

    def view(self, at: int) -> View:
        """Return the strides that a kernel needs.

        Args:
            at: Offset of the value's buffer in the arena.

        Returns:
            Offset and strides.
        """
        return View(at + self.origin, self.slab, self.channel)

    def index(self) -> np.ndarray:
        """Return the offset of each number, in the value's logical shape; with eight images, of the first image."""
        if self.eight:
            if len(self.shape) == 3:
                c, y, x = np.ogrid[tuple(slice(n) for n in self.shape)]
                return self.origin + y * self.slab + c * self.channel + x * LANES
            return (self.origin + np.arange(math.prod(self.shape)) * LANES).reshape(self.shape)
        if self.joined:
            c, y, x = np.ogrid[tuple(slice(n) for n in self.shape)]
            return self.origin + c * self.channel + y * self.shape[2] + x
        if len(self.shape) == 3:
            c, y, x = np.ogrid[tuple(slice(n) for n in self.shape)]
            return self.origin + x // LANES * self.slab + c * self.channel + y * LANES + x % LANES
        if len(self.shape) == 2:
            t, c = np.ogrid[tuple(slice(n) for n in self.shape)]
            return self.origin + c * self.channel + t
        return np.arange(math.prod(self.shape)).reshape(self.shape)


def odd_lines(floats: int) -> int:
    """Round a stride up to an odd number of cache lines.

    Two rows then share a line, and the rows of different channels spread over all sets of the L1 cache.

    Args:
        floats: The stride.

    Returns:
        The rounded stride, in floats.
    """
    lines = -(-floats // LINE)
    return LINE * (lines + 1 - lines % 2)


def one_image(shape: Shape) -> Layout:
    """Return the layout of a value of one image.

    Args:
        shape: [C, H, W] is stored in blocks of 8 columns, [T, C] in rows of 8 tokens, anything else contiguously.

    Returns:
        The layout.
    """
    if len(shape) == 3:
        channels, rows, width = shape
        slabs = -(-width // LANES)
        channel = odd_lines(rows * LANES)
        slab = odd_lines(channels * channel)  # [slabs][channels][rows][8]
        return Layout(shape, False, slabs, channels, rows, slab, channel, 0, slabs * slab)
    if len(shape) == 2:
        tokens, channels = shape
        rows = -(-tokens // LANES)
        channel = odd_lines(rows * LANES)
        return Layout(shape, False, 1, channels, rows, channels * channel, channel, 0, channels * channel)
    return flat(shape)


def joined_rows(shape: Shape) -> Layout:
    """Lay an image out with its rows one after the other, so that only the last vector of a channel has empty lanes.

    Args:
        shape: Channels, height and width.

    Returns:
        The layout.
    """
    rows = -(-shape[1] * shape[2] // LANES)
    channel = odd_lines(rows * LANES)
    margin = joined_margin(shape)
    size = shape[0] * channel
    return Layout(shape, False, 1, shape[0], rows, size, channel, margin, size + 2 * margin, True)


def joined_margin(shape: Shape) -> int:
    """Return the floats before and after an image with joined rows that its readers may reach: a row and a pixel.

    Args:
        shape: Channels, height and width.

    Returns:
        A whole number of cache lines.
    """
    return -(-(shape[2] + 1) // LINE) * LINE


def flat(shape: Shape) -> Layout:
    """Return the layout of a value that is stored contiguously.

    Args:
        shape: Its shape.

    Returns:
        The layout.
    """
    rows = max(1, -(-math.prod(shape) // LANES))
    return Layout((math.prod(shape),), False, 1, 1, rows, rows * LANES, rows * LANES, 0, rows * LANES)


def eight_images(shape: Shape, pad: tuple[int, int, int, int] = (0, 0, 0, 0)) -> Layout:
    """Return the layout of a value of eight images.

    Args:
        shape: [C, H, W] is stored by image rows; anything else by number.
        pad: Frame of zeros (top, bottom, left, right) that convolutions read as padding.

    Returns:
        The layout.
    """
    if len(shape) == 3:
        channels, height, width = shape
        top, bottom, left, right = pad
        rows = left + width + right
        channel = rows * LANES
        slab = channels * channel  # [top + height + bottom][channels][left + width + right][8 images]
        origin = top * slab + left * LANES
        return Layout(shape, True, height, channels, width, slab, channel, origin, (top + height + bottom) * slab)
    count = math.prod(shape)
    return Layout(shape, True, 1, count, 1, count * LANES, LANES, 0, count * LANES)
