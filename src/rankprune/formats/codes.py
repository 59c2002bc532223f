"""Codes for the positions of non-zeros in a flat tensor: bytes out of sorted indices, and back, every count checked.

gap8, gap16: the gaps between neighbours, a byte or two each, the largest value meaning "go on". rice: gaps in
Golomb-Rice code, close to the entropy of a random pattern. bitmap: a bit a weight, best above about 6 % density.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class BadCode(ValueError):
    """The bytes are not what the writer writes."""


def best(indices: Indices, size: int) -> tuple[str, int, bytes]:
    """The shortest code of these indices: its name, its parameter, its bytes.

    Args:
        indices: The positions of the non-zeros, rising.
        size: Entries of the tensor.
    """
    gaps = _gaps(indices)
    name, k = min(candidates(indices.size, size), key=lambda code: _length(code[0], code[1], gaps, size))
    return name, k, encode(name, k, indices, size)


def encode(name: str, parameter: int, indices: Indices, size: int) -> bytes:
    """The bytes of a code.

    Args:
        name: Of the code.
        parameter: Its parameter.
        indices: The positions of the non-zeros, rising.
        size: Entries of the tensor.
    """
    return _ENCODERS[name](indices, size, parameter)


def decode(name: str, parameter: int, data: bytes, count: int, size: int) -> Indices:
    """`count` indices, strictly rising and below `size`; anything else is a BadCode.

    Args:
        name: Of the code.
        parameter: Its parameter.
        data: The bytes.
        count: How many indices they hold.
        size: Entries of the tensor.

    Raises:
        BadCode: The bytes are something else.
    """
    if not 0 <= count <= size:
        raise BadCode(f"{count} non-zeros of {size}")
    if name not in _DECODERS:
        raise BadCode(f"code {name!r}")
    indices = _DECODERS[name](np.frombuffer(data, np.uint8), parameter, count, size)
    if indices.size != count or (count and (indices[0] < 0 or indices[-1] >= size)):
        raise BadCode(f"{indices.size} of {count} non-zeros")
    if count > 1 and not bool((np.diff(indices) > 0).all()):
        raise BadCode("non-zeros out of order")
    return indices


def candidates(count: int, size: int) -> list[tuple[str, int]]:
    """Codes worth trying for so many non-zeros: name and parameter.

    Args:
        count: How many non-zeros.
        size: Entries of the tensor.
    """
    mean = size / max(count, 1)
    bits = max(0, int(np.log2(max(mean * 0.69, 1))))  # the best Rice parameter is near log2 of the median gap
    rice = [("rice", k) for k in sorted({max(bits - 1, 0), bits, bits + 1})]
    return [("gap8", 8), ("gap16", 16), ("bitmap", 0), *rice]


def _length(name: str, k: int, gaps: Indices, size: int) -> int:
    """Bytes of a code, without making it."""
    if name == "bitmap":
        return (size + 7) // 8
    if name == "rice":
        return (gaps.size * k + 7) // 8 + (int((gaps >> k).sum()) + gaps.size + 7) // 8
    return (int((gaps // ((1 << k) - 1)).sum()) + gaps.size) * (k // 8)


def _gaps(indices: Indices) -> Indices:
    return np.diff(indices, prepend=-1) - 1


def _encode_gaps(indices: Indices, size: int, width: int) -> bytes:
    on = (1 << width) - 1
    gaps = _gaps(indices)
    skips = gaps // on
    symbols = np.full(int((skips + 1).sum()), on, np.uint8 if width == 8 else np.dtype("<u2"))
    symbols[np.cumsum(skips + 1) - 1] = gaps % on
    return symbols.tobytes()


def _decode_gaps(data: NDArray[np.uint8], width: int, count: int, size: int) -> Indices:
    if width not in (8, 16) or data.size % (width // 8):
        raise BadCode(f"{data.size} bytes of {width}-bit gaps")
    on = (1 << width) - 1
    symbols = data.view(np.uint8 if width == 8 else np.dtype("<u2")).astype(np.int64)
    if symbols.size and symbols[-1] == on:
        raise BadCode("a gap without an end")
    ends = symbols != on
    return (np.cumsum(np.where(ends, symbols + 1, symbols)) - 1)[ends]


def _encode_bitmap(indices: Indices, size: int, _: int) -> bytes:
    bits = np.zeros(size, np.uint8)
    bits[indices] = 1
    return np.packbits(bits).tobytes()


def _decode_bitmap(data: NDArray[np.uint8], _: int, count: int, size: int) -> Indices:
    if data.size != (size + 7) // 8:
        raise BadCode(f"{data.size} bytes of bitmap for {size} weights")
    bits = np.unpackbits(data)
    if bits[size:].any():
        raise BadCode("bits beyond the end")
    return np.flatnonzero(bits[:size])


def _encode_rice(indices: Indices, size: int, k: int) -> bytes:
    """First all remainders, k bits each, then all quotients in unary."""
    gaps = _gaps(indices)
    low = np.empty((gaps.size, k), np.uint8)
    for bit in range(k):
        low[:, bit] = (gaps >> bit) & 1
    quotients = gaps >> k
    unary = np.zeros(int((quotients + 1).sum()), np.uint8)
    unary[np.cumsum(quotients + 1) - 1] = 1
    return np.packbits(low).tobytes() + np.packbits(unary).tobytes()


def _decode_rice(data: NDArray[np.uint8], k: int, count: int, size: int) -> Indices:
    head = (count * k + 7) // 8
    if not 0 <= k <= 40 or data.size < head:
        raise BadCode(f"{data.size} bytes of Rice code")
    low = np.unpackbits(data[:head], count=count * k).reshape(count, k)
    remainders = np.zeros(count, np.int64)
    for bit in range(k):  # by columns: a matrix of 64-bit numbers would be many times the code
        remainders |= low[:, bit].astype(np.int64) << bit
    ones = np.flatnonzero(np.unpackbits(data[head:]))
    if ones.size != count:
        raise BadCode(f"{ones.size} of {count} quotients")
    quotients = np.diff(ones, prepend=-1) - 1
    if count and int(quotients.max()) > size >> k:
        raise BadCode("a gap beyond the end")
    return np.cumsum((quotients << k) + remainders + 1) - 1


_ENCODERS: dict[str, Callable[[Indices, int, int], bytes]] = {
    "gap8": _encode_gaps,
    "gap16": _encode_gaps,
    "bitmap": _encode_bitmap,
    "rice": _encode_rice,
}
_DECODERS: dict[str, Callable[[NDArray[np.uint8], int, int, int], Indices]] = {
    "gap8": _decode_gaps,
    "gap16": _decode_gaps,
    "bitmap": _decode_bitmap,
    "rice": _decode_rice,
}
