"""Machine code that the library generates for one layer."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from ctypes import Structure
from typing import Any

import numpy as np

from .native import fields, library


class Taps(Structure):
    """A layer to generate code for."""

    _fields_ = fields(
        "int64_t outputs, width, count, residual, relu; Floats values, bias; Ints offsets; Bytes channels;"
        "Longs starts, base; Bytes masks"
    )


class Code:
    """Machine code of one layer, which is generated when it is made and freed with it.

    Args:
        outputs: Output channels.
        width: Output channels of a chunk.
        residual: A residual is added.
        relu: ReLU is applied.
        arrays: Values, bias, offsets, channels, starts, base and, where taps need them, masks of `rp_taps` in api.h.

    Raises:
        RuntimeError: The lists are invalid, or the system allows no generated code.
    """

    def __init__(self, outputs: int, width: int, residual: bool, relu: bool, arrays: Sequence[np.ndarray]) -> None:
        self._lib = library()
        self._arrays = arrays  # the code refers to values and bias
        taps = Taps(outputs, width, arrays[0].size, residual, relu, *(array.ctypes.data for array in arrays))
        self._memory = self._lib.rp_jit_new(ctypes.addressof(taps))
        if not self._memory:
            raise RuntimeError("no code can be generated for this layer, or not on this system")

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's description of the memory: `np.asarray(code)` refers to it and keeps it alive."""
        size = self._lib.rp_jit_bytes(self._memory)
        return {"shape": (size,), "typestr": "|u1", "data": (self._memory, True), "version": 3}

    def __del__(self) -> None:
        if getattr(self, "_memory", None):
            self._lib.rp_jit_free(self._memory)


@functools.cache
def jit_allowed() -> bool:
    """Whether this system lets a process generate code."""
    one, zero = np.ones(1, np.float32), np.zeros(2, np.int64)
    arrays: list[np.ndarray] = [one[:0], one, np.zeros(0, np.int32), np.zeros(0, np.uint8), zero, zero]
    try:
        Code(1, 1, False, False, arrays)
    except RuntimeError:
        return False
    return True
