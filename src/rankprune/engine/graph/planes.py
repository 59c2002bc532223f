"""Which shifted and phase-split copies (planes) of a channel the taps of a sliding window read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .target import LANES


@dataclass(frozen=True)
class PlaneSet:
    """The planes of one channel, [phase of the row][tap along x], in which each tap reads aligned rows.

    Attributes:
        x_first: First input column of each tap along x, (kw,).
        y_first: First input row of each phase, (phases,).
        rows: Rows of a plane.
        slabs: Blocks of 8 columns.
        taps: Offset of each tap in rows, (kh, kw).
    """

    x_first: np.ndarray
    y_first: np.ndarray
    rows: int
    slabs: int
    taps: np.ndarray

    @property
    def count(self) -> int:
        """Number of planes."""
        return self.x_first.size * self.y_first.size

    @property
    def centre(self) -> int:
        """Index of the plane that equals the input; -1 if there is none."""
        unshifted = np.flatnonzero(self.x_first == 0)
        return int(unshifted[0]) if unshifted.size and self.y_first.size == 1 else -1


def plane_set(
    out: tuple[int, ...], kernel: list[int], stride: list[int], pad: list[int], dilation: list[int]
) -> PlaneSet:
    """Return the planes of a window.

    Output (y, x) and tap (ky, kx) read input row stride·y + dilation·ky − pad, which is a row of one phase, shifted.

    Args:
        out: Shape of the result, (channels, height, width).
        kernel: Height and width of the window.
        stride: Along y and x.
        pad: Along y and x.
        dilation: Along y and x.

    Returns:
        The planes.
    """
    height, width = out[1:]
    shift, phase = np.divmod(np.arange(kernel[0]) * dilation[0] - pad[0], stride[0])  # (kh,) each
    phases, which = np.unique(phase, return_inverse=True)
    lowest = shift.min()
    rows = int(height + shift.max() - lowest)
    x_first = np.arange(kernel[1], dtype=np.int64) * dilation[1] - pad[1]
    taps = (which[:, None] * kernel[1] + np.arange(kernel[1])[None, :]) * rows + (shift - lowest)[:, None]
    y_first = (stride[0] * lowest + phases).astype(np.int64)
    return PlaneSet(x_first, y_first, rows, -(-width // LANES), taps)
