"""Operations with boolean masks that torch does slowly on a CPU, where they are most of the cost of a mask update.

Writing a comparison into a bool tensor is several times slower than into floats, `nonzero` of a sparse mask several
times slower than of the same bytes as 64-bit words, and `torch.where` several times slower than an integer product.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CACHED = 2**20  # weights masked at a time on a CPU: their widened mask fits into a cache of 4 MB
SPARSE = 4  # a mask is worth a list of positions if it keeps less than one entry in four


def apply_mask_(tensor: Tensor, keep: Tensor) -> None:
    """Write exact zeros, in place, where `keep` is False.

    The bits, as integers, are multiplied by 0 or 1: cheaper than `where`, and unlike a product of floats it clears NaN.
    On a CPU a few rows at a time, so that the widened mask stays in the cache.

    Args:
        tensor: Any tensor.
        keep: A mask of its shape.
    """
    bits, keep = tensor.view(_BITS[tensor.element_size()]), keep.view(torch.int8)
    rows = _CACHED * len(keep) // max(1, keep.numel()) if tensor.device.type == "cpu" else len(keep)
    if rows >= len(keep):
        bits.mul_(keep)
        return
    for part, kept in zip(bits.split(max(1, rows)), keep.split(max(1, rows)), strict=True):
        part.mul_(kept)


def in_memory_order(values: Tensor) -> Tensor:
    """All entries as a vector in the order they have in memory: a view, also of a channels-last tensor.

    Args:
        values: A tensor; one that is not dense in memory is copied.
    """
    order = sorted(range(values.dim()), key=values.stride, reverse=True)  # stable: equal strides keep their order
    return values.permute(order).reshape(-1)


def above(values: Tensor, value: float) -> Tensor:
    """Mask of the entries above a value; NaN is above all.

    Args:
        values: A tensor of floats.
        value: What they are compared with.
    """
    return torch.le(values, value, out=torch.empty_like(values)).eq_(0).to(torch.bool)


def positions(mask: Tensor) -> Tensor:
    """The positions of the True entries of a vector, ascending.

    Args:
        mask: A bool vector. Cheap if most words of eight entries are all False.
    """
    whole = mask.numel() // 8 * 8
    if mask.device.type != "cpu" or mask.storage_offset() % 8 or not mask.is_contiguous():
        return mask.nonzero().view(-1)
    words = mask[:whole].view(torch.int64).nonzero().view(-1)  # (words with a True entry,)
    word, byte = mask[:whole].view(-1, 8)[words].nonzero().unbind(1)
    return torch.cat([words[word].mul_(8).add_(byte), mask[whole:].nonzero().view(-1).add_(whole)])


def sparse_positions(mask: Tensor) -> Tensor | None:
    """The positions of the True entries in the mask's memory order; None if more than a quarter are True.

    Args:
        mask: A bool tensor.
    """
    flat = in_memory_order(mask)
    return positions(flat) if SPARSE * count(flat) <= flat.numel() else None


def count(mask: Tensor) -> int:
    """The number of True entries.

    Args:
        mask: A bool tensor.
    """
    return int(in_memory_order(mask).view(torch.int8).sum(dtype=torch.int32 if mask.numel() < 2**31 else torch.int64))
