"""Reading a pickle that holds arrays, bytes, numbers, lists and dicts, and can hold nothing else."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

# The function by which numpy rebuilds an array; its module has moved, and old files still name the old place.
_RECONSTRUCT = np.empty(0).__reduce__()[0]  # type: ignore[index]
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ADMITTED[module, name]


def loads_arrays(raw: bytes) -> Any:
    """Like ``pickle.loads``, with Python 2 strings as bytes; raises UnpicklingError on anything but arrays."""
    return _ArrayUnpickler(io.BytesIO(raw), encoding="bytes").load()
