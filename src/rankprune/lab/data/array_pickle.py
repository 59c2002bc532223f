"""Reading a pickle that holds arrays of numbers, bytes, numbers, lists and dicts, and can hold nothing else.

NumPy's own functions trust the pickle (a state that is wrong can crash them), so the names that a pickle of arrays asks
for stand for classes of this file, which look at what they are given.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from typing import Any

import numpy as np


class _Kind:
    """What the pickle says of a dtype: a code such as u1, and the order of its bytes."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = code.decode("latin-1") if isinstance(code, bytes) else code
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("latin-1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError("the order of its bytes is unknown")
        self.order = order

    def dtype(self) -> np.dtype[Any]:
        if not isinstance(self.code, str) or not re.fullmatch(r"[biuf][1248]", self.code):
            raise pickle.UnpicklingError("it has an array of something else than numbers")
        return np.dtype(self.code).newbyteorder(self.order)  # type: ignore[arg-type]


class _Array(np.ndarray[Any, Any]):
    """An array that is filled only with as many bytes as its shape says."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, _Kind) or type(shape) is not tuple or any(type(n) is not int or n < 0 for n in shape):
            raise pickle.UnpicklingError("it has an array without shape or type")
        dtype = kind.dtype()
        if type(raw) is not bytes or len(raw) != math.prod(shape) * dtype.itemsize or len(shape) > 8:
            raise pickle.UnpicklingError("it has an array of another size than its shape")
        super().__setstate__((1, shape, dtype, bool(fortran), raw))  # type: ignore[arg-type]


def _reconstruct(*_: Any) -> Any:
    """An empty array, as numpy's function of this name gives; its state follows."""
    return _Array.__new__(_Array, (0,), np.uint8)


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,  # the module has moved, and old files name the old place
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
    """Like ``pickle.loads``, with Python 2 strings as bytes; raises UnpicklingError on anything but arrays."""
    try:
        for opcode, argument, _ in pickletools.genops(raw):
            # The unpickler makes room for as many objects as the largest number under which one is kept.
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and (argument or 0) > len(raw):
                raise pickle.UnpicklingError(f"it keeps an object under the number {argument}")
        return _ArrayUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # of whatever a damaged pickle makes Python do
        reason = " ".join(str(error).split())[:100]
        raise pickle.UnpicklingError(f"it is damaged: {type(error).__name__} {reason}") from None
