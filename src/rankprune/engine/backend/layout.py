"""Where each number of a value lies: [slab][channel][row][8 lanes], for one image or for eight at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rankprune.engine.graph.graph import Shape

from .native import LANES, View

LINE = 16  # floats of a cache line


@dataclass(frozen=True)
class Layout:
    """Extents and strides (in floats) of one value; `origin` is the place of its first number."""

    shape: Shape
    eight: bool  # lanes are images
    slabs: int
    channels: int
    rows: int
    slab: int
    channel: int
    origin: int
    size: int

    def view(self, at: int) -> View:
        return View(at + self.origin, self.slab, self.channel)

    def index(self) -> np.ndarray:
        """Place of each number, in the value's logical shape; for images, of lane 0."""
        if self.eight:
            if len(self.shape) == 3:
                c, y, x = np.ogrid[tuple(slice(n) for n in self.shape)]
                return self.origin + y * self.slab + c * self.channel + x * LANES
            return (self.origin + np.arange(math.prod(self.shape)) * LANES).reshape(self.shape)
        if len(self.shape) == 3:
            c, y, x = np.ogrid[tuple(slice(n) for n in self.shape)]
            return self.origin + x // LANES * self.slab + c * self.channel + y * LANES + x % LANES
        if len(self.shape) == 2:
            t, c = np.ogrid[tuple(slice(n) for n in self.shape)]
            return self.origin + c * self.channel + t
        return np.arange(math.prod(self.shape)).reshape(self.shape)


def odd_lines(floats: int) -> int:
    """A stride of an odd number of cache lines.

    Vectors of two rows then lie within a line, and some rows of every channel use all sets of the nearest cache.
    """
    lines = -(-floats // LINE)
    return LINE * (lines + 1 - lines % 2)


def one_image(shape: Shape) -> Layout:
    """Images [C, H, W] in blocks of 8 columns, tokens [T, C] in rows of 8 tokens, anything else as it is."""
    if len(shape) == 3:
        channels, rows, width = shape
        slabs = -(-width // LANES)
        channel = odd_lines(rows * LANES)
        slab = odd_lines(channels * channel)
        return Layout(shape, False, slabs, channels, rows, slab, channel, 0, slabs * slab)
    if len(shape) == 2:
        tokens, channels = shape
        rows = -(-tokens // LANES)
        channel = odd_lines(rows * LANES)
        return Layout(shape, False, 1, channels, rows, channels * channel, channel, 0, channels * channel)
    return flat(shape)


def flat(shape: Shape) -> Layout:
    """The numbers one after the other."""
    rows = max(1, -(-math.prod(shape) // LANES))
    return Layout((math.prod(shape),), False, 1, 1, rows, rows * LANES, rows * LANES, 0, rows * LANES)


def eight_images(shape: Shape, pad: tuple[int, int, int, int] = (0, 0, 0, 0)) -> Layout:
    """Rows of images inside a frame (top, bottom, left, right) that convolutions read as zeros; vectors by number."""
    if len(shape) == 3:
        channels, height, width = shape
        top, bottom, left, right = pad
        rows = left + width + right
        channel = rows * LANES
        slab = channels * channel
        origin = top * slab + left * LANES
        return Layout(shape, True, height, channels, width, slab, channel, origin, (top + height + bottom) * slab)
    count = math.prod(shape)
    return Layout(shape, True, 1, count, 1, count * LANES, LANES, 0, count * LANES)
