"""Packs the nonzeros of a layer in the order in which its kernel reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankprune.engine.graph.graph import Unsupported, Weight
from rankprune.engine.graph.target import REACH

from .choice import JIT_REACH, Choice
from .native import LANES


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
