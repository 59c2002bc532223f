"""Exact selection of the largest scores, within one tensor or over many.

A threshold is found by radix selection on the bits of the scores: two histogram passes for 32-bit floats, never a
concatenation or a sort. Ties go by (tensor order, flat index), so counts are exact and equal on every rank.

A score is a tensor, or a callable that makes one. A callable is asked once a pass, so that one layer is held at a
time, and what it returns is consumed: it must be a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

Scores = Tensor | Callable[[], Tensor]

_DIGIT = 16
_CHUNK = 1 << 17  # temporaries are made this many entries at a time


class Shards(Protocol):
    """How the parts of one tensor that lie on several ranks count together (flat order is rank order)."""

    def sum(self, counts: Tensor) -> Tensor: ...

    def before(self, count: int) -> int: ...


class Cut(NamedTuple):
    """Where a selection over several tensors ends: how many entries of each are in."""

    counts: list[int]
    spent: int


def keep_largest(score: Scores, count: int, shards: Shards | None = None) -> Tensor:
    """Mask of the `count` largest scores, ties by flat index."""
    values = _take(score)
    shape = values.shape
    keys = _order_keys_(values)
    key, spent = _threshold([lambda: keys], [1], count, [shards], 8 * keys.element_size())
    mask = torch.gt(keys, key)
    ties = count - spent
    if shards:
        ties = max(ties - shards.before(int(torch.count_nonzero(keys == key))), 0)
    for start, chunk in enumerate(keys.split(_CHUNK)):
        if ties <= 0:
            break
        equal = (chunk == key).nonzero().view(-1)[:ties]
        mask[start * _CHUNK + equal] = True
        ties -= equal.numel()
    return mask.view(shape)


def select(
    scores: Sequence[Scores],
    budget: int,
    costs: Sequence[int] | None = None,
    shards: Sequence[Shards | None] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Cut:
    """How many entries of each tensor are among the largest over all whose costs sum to at most `budget`.

    `costs[i]` is the integer cost of one entry of tensor i (1 unless given); with equal costs exactly `budget` are
    in. Scores are compared as they are (divide by the cost first for a score per cost), in `dtype`, 32 or 64 bits wide.
    """
    costs = [1] * len(scores) if costs is None else list(costs)
    shards = [None] * len(scores) if shards is None else list(shards)
    sources = [lambda s=s: _order_keys_(_take(s).to(dtype)) for s in scores]  # type: ignore[misc]
    key, spent = _threshold(sources, costs, budget, shards, torch.finfo(dtype).bits)
    counts = []
    for source, cost, shard in zip(sources, costs, shards):
        keys = source()
        both = torch.stack([torch.count_nonzero(keys > key), torch.count_nonzero(keys == key)])
        del keys  # before the next layer's are made
        strictly, equal = (shard.sum(both) if shard else both).tolist()
        ties = min(equal, (budget - spent) // cost)
        spent += ties * cost
        counts.append(strictly + ties)
    return Cut(counts, spent)


def _threshold(
    sources: Sequence[Callable[[], Tensor]],
    costs: Sequence[int],
    budget: int,
    shards: Sequence[Shards | None],
    bits: int,
) -> tuple[int, int]:
    """The key at which the budget ends, and the cost of everything above it."""
    prefix: int | None = None
    spent = 0
    for shift in range(bits - _DIGIT, -1, -_DIGIT):
        total = torch.zeros(())
        for source, cost, shard in zip(sources, costs, shards):
            counts = _histogram(source(), shift, prefix)
            total = (shard.sum(counts) if shard else counts) * cost + total.to(counts)
        at_or_above = total.flip(0).cumsum(0).flip(0)
        # The highest digit whose bin no longer fits wholly (the lowest one where all of them fit).
        digit = max(int(torch.count_nonzero(at_or_above + spent > budget)) - 1, 0)
        spent += int(at_or_above[digit] - total[digit])
        prefix = digit - (1 << (_DIGIT - 1)) if prefix is None else (prefix << _DIGIT) + digit  # keys are signed
    assert prefix is not None
    return prefix, spent


def _histogram(keys: Tensor, shift: int, prefix: int | None) -> Tensor:
    """How many keys (that begin with `prefix`) have each value of the next digit."""
    counts = torch.zeros(1 << _DIGIT, dtype=torch.int64, device=keys.device)
    for chunk in keys.split(_CHUNK):
        if prefix is None:
            digits = (chunk >> shift).add_(1 << (_DIGIT - 1))
        else:
            digits = (chunk[(chunk >> (shift + _DIGIT)) == prefix] >> shift).bitwise_and_((1 << _DIGIT) - 1)
        if digits.numel():
            counts += torch.bincount(digits, minlength=1 << _DIGIT)
    return counts


def _take(score: Scores) -> Tensor:
    """A tensor of our own with the scores, 32 or 64 bits wide."""
    values = score.detach().clone() if isinstance(score, Tensor) else score()
    return values if values.dtype == torch.float64 else values.float()


def _order_keys_(values: Tensor) -> Tensor:
    """Turn floats, in place, into integers of the same order."""
    flat = values.contiguous().view(-1)
    ints = torch.int64 if flat.dtype == torch.float64 else torch.int32
    for chunk in flat.split(_CHUNK):
        chunk.add_(0.0)  # minus zero ties with zero
        raw = chunk.view(ints)
        # The bits of negative floats run backwards: flip all but the sign.
        raw.bitwise_xor_((raw >> (torch.iinfo(ints).bits - 1)).bitwise_and_(torch.iinfo(ints).max))
    return flat.view(ints)
