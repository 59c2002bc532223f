"""A weight's mask as a small image: one row per filter, one column per input channel, darker where more is kept."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np

from rankprune._util import need

_LEVELS = 16  # four bits per pixel
_COLOUR = (64, 120, 242)  # readable on white and on black; pruned weights are transparent


@dataclass(frozen=True)
class Picture:
    """A picture of a mask.

    Attributes:
        src: A data URL with a PNG.
        rows: Height in pixels.
        columns: Width in pixels.
        cell: Maximum number of (filters, input channels) per pixel.
        strongest: Largest density of a pixel.
    """

    src: str
    rows: int
    columns: int
    cell: tuple[int, int]
    strongest: float


def picture(matrix: np.ndarray, kernel: int, side: int) -> Picture:
    """Draw a mask as (out, in), in at most `side` by `side` pixels.

    Args:
        matrix: The weight, (out, in*kernel).
        kernel: Number of positions of the kernel, kh*kw.
        side: Maximum side in pixels.

    Returns:
        The picture.
    """
    counts = (matrix != 0).reshape(matrix.shape[0], -1, kernel).sum(2)  # (out, in)
    rows, columns = (_edges(n, side) for n in counts.shape)
    sums = np.add.reduceat(np.add.reduceat(counts, rows[:-1], 0), columns[:-1], 1)  # (pixel rows, pixel columns)
    heights, widths = np.diff(rows), np.diff(columns)
    density = sums / (np.outer(heights, widths) * kernel)
    strongest = float(density.max())
    # The square root and rounding up keep a single weight in a large cell visible.
    levels = np.ceil(np.sqrt(density / (strongest or 1.0)) * (_LEVELS - 1)).astype(np.uint8)
    cell = (int(heights.max()), int(widths.max()))
    return Picture(_png(levels), levels.shape[0], levels.shape[1], cell, strongest)


def _edges(length: int, side: int) -> np.ndarray:
    return np.linspace(0, length, min(length, side) + 1).round().astype(int)


def _png(levels: np.ndarray) -> str:
    image = need("PIL.Image", "report", "A report").fromarray(levels).convert("P")
    image.putpalette(_COLOUR * _LEVELS)
    buffer = io.BytesIO()
    alpha = bytes(round(255 * i / (_LEVELS - 1)) for i in range(_LEVELS))
    image.save(buffer, "PNG", bits=4, transparency=alpha, optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
