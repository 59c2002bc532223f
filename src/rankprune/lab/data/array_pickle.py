"""A restricted unpickler: arrays of numbers, bytes, numbers, lists and dicts, and nothing else.

NumPy's own reconstruction functions trust the pickle (an invalid state can crash them), so the names that a pickle of
arrays refers to are mapped to the classes of this file, which validate their input.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from typing import Any

import numpy as np

from rankprune._util import one_line


class _Kind:
    """A dtype as the pickle describes it: a code such as u1, and a byte order."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = code.decode("latin-1") if isinstance(code, bytes) else code
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("latin-1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError("its byte order is unknown")
        self.order = order

    def dtype(self) -> np.dtype[Any]:
        if not isinstance(self.code, str) or not re.fullmatch(r"[biuf][1248]", self.code):
            raise pickle.UnpicklingError("it has an array that does not hold numbers")
        return np.dtype(self.code).newbyteorder(self.order)  # type: ignore[arg-type]


class _Array(np.ndarray[Any, Any]):
    """An array that accepts exactly as many bytes as its shape needs."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, _Kind) or type(shape) is not tuple or any(type(n) is not int or n < 0 for n in shape):
            raise pickle.UnpicklingError("it has an array without shape or type")
        dtype = kind.dtype()
        if type(raw) is not bytes or len(raw) != math.prod(shape) * dtype.itemsize or len(shape) > 8:
            raise pickle.UnpicklingError("it has an array whose size differs from its shape")
        super().__setstate__((1, shape, dtype, bool(fortran), raw))  # type: ignore[arg-type]


def _reconstruct(*_: Any) -> Any:
    """Return an empty array, like the function of this name in NumPy; its state follows in the pickle."""
    return _Array.__new__(_Array, (0,), np.uint8)


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,  # the name of the module in NumPy 1
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _Kind,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ADMITTED[module, name]


def loads_arrays(raw: bytes) -> Any:
    """Load a pickle of arrays like ``pickle.loads``, with Python 2 strings as bytes.

    Args:
        raw: The pickle.

    Returns:
        The object that it holds.

    Raises:
        pickle.UnpicklingError: The pickle is damaged, or holds anything but arrays, numbers, bytes, lists and dicts.
    """
    try:
        for opcode, argument, _ in pickletools.genops(raw):
            # The unpickler's memo is allocated up to its largest index, so a small file could ask for much memory.
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and (argument or 0) > len(raw):
                raise pickle.UnpicklingError(f"it stores an object at memo index {argument}")
        return _ArrayUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle can raise almost anything
        reason = one_line(error, 100)
        raise pickle.UnpicklingError(f"it is damaged: {type(error).__name__} {reason}") from None
