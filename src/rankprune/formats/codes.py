"""Codes for the positions of the nonzeros in a flat tensor. They map sorted indices to bytes; decoding checks them.

gap8, gap16: the number of zeros before each nonzero, in symbols of one or two bytes; the largest symbol adds its value
and continues with the next one. rice: the same numbers in Golomb-Rice code, close to the entropy of random positions.
bitmap: one bit per weight, the shortest above a density of about 6 %.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class BadCode(ValueError):
    """Bytes that are not the code of so many positions."""


def shortest(indices: Indices, size: int) -> tuple[str, int, bytes]:
    """Encode indices with the code that takes the fewest bytes.

    Args:
        indices: Positions of the nonzeros, ascending.
        size: Number of entries of the tensor.

    Returns:
        (name of the code, its parameter, bytes).
    """
    gaps = _gaps(indices)
    name, parameter = min(candidates(indices.size, size), key=lambda code: _length(code[0], code[1], gaps, size))
    return name, parameter, encode(name, parameter, indices, size)


def encode(name: str, parameter: int, indices: Indices, size: int) -> bytes:
    """Encode indices with a given code.

    Args:
        name: Name of the code.
        parameter: Its parameter.
        indices: Positions of the nonzeros, ascending.
        size: Number of entries of the tensor.

    Returns:
        The bytes.
    """
    return _ENCODERS[name](indices, size, parameter)


def decode(name: str, parameter: int, data: bytes, count: int, size: int) -> Indices:
    """Decode indices, and check that they are strictly ascending and within the tensor.

    Args:
        name: Name of the code.
        parameter: Its parameter.
        data: The bytes.
        count: Number of indices.
        size: Number of entries of the tensor.

    Returns:
        The `count` indices.

    Raises:
        BadCode: The bytes are not a code of `count` such indices.
    """
    if not 0 <= count <= size:
        raise BadCode(f"{count} nonzeros of {size} weights")
    if name not in _DECODERS:
        raise BadCode(f"the unknown code {name!r}")
    indices = _DECODERS[name](np.frombuffer(data, np.uint8), parameter, count, size)
    if indices.size != count or (count and (indices[0] < 0 or indices[-1] >= size)):
        raise BadCode(f"{indices.size} of {count} nonzeros")
    if not bool((indices[1:] > indices[:-1]).all()):  # not by differences, which would wrap around as sums do
        raise BadCode("nonzeros out of order")
    return indices


def candidates(count: int, size: int) -> list[tuple[str, int]]:
    """Return the codes that may be the shortest.

    Args:
        count: Number of nonzeros.
        size: Number of entries of the tensor.

    Returns:
        (name, parameter) of each.
    """
    mean_gap = size / max(count, 1)
    # The best Rice parameter is near log2 of the median gap, which for random positions is ln 2 = 0.69 of the mean.
    k = int(np.log2(max(mean_gap * 0.69, 1)))
    rice = [("rice", near) for near in sorted({max(k - 1, 0), k, k + 1})]
    return [("gap8", 8), ("gap16", 16), ("bitmap", 0), *rice]


def _length(name: str, parameter: int, gaps: Indices, size: int) -> int:
    """Number of bytes of a code, without encoding."""
    if name == "bitmap":
        return (size + 7) // 8
    if name == "rice":
        return (gaps.size * parameter + 7) // 8 + (int((gaps >> parameter).sum()) + gaps.size + 7) // 8
    return (int((gaps // ((1 << parameter) - 1)).sum()) + gaps.size) * (parameter // 8)


def _gaps(indices: Indices) -> Indices:
    """Number of zeros before each nonzero, since the previous one."""
    return np.diff(indices, prepend=-1) - 1


def _encode_gaps(indices: Indices, size: int, width: int) -> bytes:
    escape = (1 << width) - 1
    gaps = _gaps(indices)
    escapes = gaps // escape  # how many precede the last symbol of each gap
    symbols = np.full(int((escapes + 1).sum()), escape, np.uint8 if width == 8 else np.dtype("<u2"))
    symbols[np.cumsum(escapes + 1) - 1] = gaps % escape
    return symbols.tobytes()


def _decode_gaps(data: NDArray[np.uint8], width: int, count: int, size: int) -> Indices:
    if width not in (8, 16) or data.size % (width // 8):
        raise BadCode(f"{data.size} bytes of {width}-bit gaps")
    escape = (1 << width) - 1
    symbols = data.view(np.uint8 if width == 8 else np.dtype("<u2")).astype(np.int64)
    if symbols.size and symbols[-1] == escape:
        raise BadCode("a gap without an end")
    ends = symbols != escape
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
    """All remainders modulo 2^k, lowest bit first, then all quotients in unary: so many zeros and a one."""
    gaps = _gaps(indices)
    remainders = np.empty((gaps.size, k), np.uint8)
    for bit in range(k):
        remainders[:, bit] = (gaps >> bit) & 1
    quotients = gaps >> k
    unary = np.zeros(int((quotients + 1).sum()), np.uint8)
    unary[np.cumsum(quotients + 1) - 1] = 1
    return np.packbits(remainders).tobytes() + np.packbits(unary).tobytes()


def _decode_rice(data: NDArray[np.uint8], k: int, count: int, size: int) -> Indices:
    head = (count * k + 7) // 8  # bytes of the remainders
    if not 0 <= k <= 40 or data.size < head:
        raise BadCode(f"{data.size} bytes of Rice code")
    bits = np.unpackbits(data[:head], count=count * k).reshape(count, k)
    remainders = np.zeros(count, np.int64)
    for bit in range(k):  # by columns, because a 64-bit matrix would take many times the memory of the code
        remainders |= bits[:, bit].astype(np.int64) << bit
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
