"""Convolutions that read an image with joined rows where it lies, without a shifted copy for each column of the window.

Pixels from (y + dy, x + dx) on lie dy * width + dx floats after those from (y, x) on. Pixels beyond an edge are masked.
Only generated code can do this, because a list of taps has no masks. With a stride, the window reads the images that
the stride divides the input into.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankprune.engine.graph.graph import Graph, Node

from .layout import joined_margin, odd_lines
from .shape_choice import JIT_DENSEST, JIT_SMALLEST

MASKS = 8  # of generated code
PIXELS = 16  # of a vector
LARGEST = 32  # taps; a larger window needs more masks than there are


@dataclass(frozen=True)
class Masks:
    """Which taps reach beyond the edges of an image.

    Attributes:
        numbers: Number of the mask of each tap, 0 for none, (taps,).
        bits: Pixels of each vector whose tap is within the image, by number from 1, (vectors, MASKS).
    """

    numbers: np.ndarray
    bits: np.ndarray


@dataclass(frozen=True)
class Window:
    """How a convolution reads its input.

    Attributes:
        phases: First row and column of each image that the taps read, (phases, 2).
        apart: Floats between the images of a channel.
        channel: Floats between two channels.
        taps: Offset of each tap, in floats, (kh, kw).
        masks: Which taps reach beyond the edges.
    """

    phases: np.ndarray
    apart: int
    channel: int
    taps: np.ndarray
    masks: Masks


def direct_window(graph: Graph, node: Node, lanes: int, jit: bool, images: int = 1) -> Window | None:
    """Return how a convolution reads its input if it needs no shifted copies.

    Args:
        graph: The network.
        node: The node.
        lanes: Floats of the widest vectors.
        jit: Code may be generated.
        images: Images that lie one below the other in each value.

    Returns:
        The window; None for another node, or if the convolution needs copies.
    """
    if node.op != "conv" or not jit or lanes != PIXELS or node.attrs["groups"] != 1:
        return None
    weight, shape, out = node.kernel, graph.shapes[node.inputs[0]], graph.shapes[node.output]
    stride, pad, dilation = (node.attrs[key] for key in ("stride", "padding", "dilation"))
    pixels = out[1] * out[2]
    if out[1:] != tuple(-(-n // s) for n, s in zip(shape[1:], stride)):
        return None
    if weight.nonzeros >= JIT_DENSEST * weight.size or pixels < JIT_SMALLEST:
        return None
    # Tap (ky, kx) reads row stride * y + first[0][ky] and column stride * x + first[1][kx] for pixel (y, x).
    first = [np.arange(k) * d - p for k, d, p in zip(weight.shape[2:], dilation, pad)]
    taps = np.stack(np.meshgrid(*first, indexing="ij"), -1).reshape(-1, 2)
    shift, phase = np.divmod(taps, stride)
    phases, which = np.unique(phase, axis=0, return_inverse=True)
    apart = odd_lines(pixels)
    channel = odd_lines(len(phases) * apart)
    near = shift @ [out[2], 1]
    offsets = which.reshape(-1) * apart + near
    masks = _masks(taps, stride, shape, out, images) if len(taps) <= LARGEST else None
    # The floats of two channels must lie so far apart that an offset belongs to one channel and tap alone.
    if masks is None or np.abs(near).max() > joined_margin(out) or np.ptp(offsets) >= channel:
        return None
    return Window(np.ascontiguousarray(phases, np.int64), apart, channel, offsets.reshape(weight.shape[2:]), masks)


def _masks(
    taps: np.ndarray, stride: list[int], shape: tuple[int, ...], out: tuple[int, ...], images: int
) -> Masks | None:
    """The masks of a window; None if it needs too many."""
    pixel = np.arange(-(-out[1] * out[2] // PIXELS) * PIXELS)
    y, x = np.divmod(pixel, out[2])
    place = np.stack([y % (out[1] // images), x], -1) * stride + taps[:, None]  # (taps, pixels, 2) in its input image
    inside = (place >= 0) & (place < [shape[1] // images, shape[2]])
    within = inside.all(-1) | (pixel >= out[1] * out[2])
    # Each row as one value, compared byte by byte. With axis=0 NumPy makes a field of every pixel: 1.4 s for 500 x 500.
    rows = np.ascontiguousarray(within).view(f"V{within.shape[1]}").reshape(-1)
    _, first, numbers = np.unique(rows, return_index=True, return_inverse=True)
    different = within[first]
    # A mask of all pixels is none: it sorts last, and takes the number 0.
    full = bool(different[-1].all())
    masked = different[:-1] if full else different
    if len(masked) > MASKS:
        return None
    bits = np.zeros((pixel.size // PIXELS, MASKS), np.uint16)
    for number, mask in enumerate(masked):
        bits[:, number] = np.packbits(mask.reshape(-1, PIXELS), 1, bitorder="little").view("<u2")[:, 0]
    numbers = numbers.reshape(-1) + 1
    return Masks(np.where(numbers > len(masked), 0, numbers).astype(np.uint8), bits)
