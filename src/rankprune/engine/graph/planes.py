"""How a window slides over an image: which shifted and phase-split copies (planes) of a channel its taps read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .target import LANES


@dataclass(frozen=True)
class PlaneSet:
    """Planes of one channel, [phase of the row][tap along x], so that each tap reads aligned rows."""

    x_first: np.ndarray
    y_first: np.ndarray
    rows: int  # of a plane
    slabs: int
    taps: np.ndarray  # offset in rows of each tap, [ky, kx]

    @property
    def count(self) -> int:
        return self.x_first.size * self.y_first.size

    @property
    def centre(self) -> int:
        """The plane that is the input as it is, or -1."""
        found = np.flatnonzero(self.x_first == 0)
        return int(found[0]) if found.size and self.y_first.size == 1 else -1


def plane_set(
    out: tuple[int, ...], kernel: list[int], stride: list[int], pad: list[int], dilation: list[int]
) -> PlaneSet:
    """Output (y, x) and tap (ky, kx) read input row stride·y + dilation·ky − pad: a phase and a shift of its plane."""
    height, width = out[1:]
    shift, phase = np.divmod(np.arange(kernel[0]) * dilation[0] - pad[0], stride[0])
    phases, which = np.unique(phase, return_inverse=True)
    lowest = shift.min()
    rows = int(height + shift.max() - lowest)
    x_first = np.arange(kernel[1], dtype=np.int64) * dilation[1] - pad[1]
    taps = (which[:, None] * kernel[1] + np.arange(kernel[1])[None, :]) * rows + (shift - lowest)[:, None]
    y_first = (stride[0] * lowest + phases).astype(np.int64)
    return PlaneSet(x_first, y_first, rows, -(-width // LANES), taps)
