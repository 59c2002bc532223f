"""Packed weights: kept so that each is packed once, and read back as weights."""

from __future__ import annotations

import numpy as np

from rankprune.engine.graph.graph import Weight

from .choice import Choice
from .generated import Code
from .native import LANES
from .packing import Packed, pack


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
        numbers = None if masks is None else masks.tobytes()
        key = (node, taps.tobytes(), channel, choice.width, choice.block, choice.dense, numbers)
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

    def keep(self, addresses: set[int]) -> None:
        """Forget all weights but those whose values lie at certain addresses.

        Args:
            addresses: The addresses.
        """
        self._packed = {key: p for key, p in self._packed.items() if p.values.ctypes.data in addresses}
        self._code = {at: code for at, code in self._code.items() if at in addresses}


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
