"""Exact selection of the largest scores, within one tensor or over many.

A sample gives two scores between which the cut lies, and the scores between them are collected (Floyd and Rivest
1975). Where the cut of the step before is known, two scores near it are tried first. If the bounds were misleading,
and for sharded tensors or unequal costs, the cut is found by radix selection on the bits of the scores: two histogram
passes for 32-bit floats. Scores are never concatenated or sorted as a whole. Ties are broken by (tensor order, flat
index), so counts are exact and equal on every rank.

A score is a tensor, or a function that computes one. A function is called once per pass, so that the scores of one
layer are in memory at a time. Scores are never written to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from . import masks

Scores = Tensor | Callable[[], Tensor]

_DIGIT = 16
_CHUNK = 1 << 17  # entries of a temporary
_STRIDE = 61  # of the sample; prime, so that it visits all positions of a filter
_MARGIN = 4.0  # standard deviations of the sample between the guessed bounds and the cut
_NEAR = 0.01  # how far from the cut of the step before the next one may lie, as a fraction of it


class Shards(Protocol):
    """How counts over the parts of a sharded tensor are combined (flat order is rank order)."""

    def sum(self, counts: Tensor) -> Tensor:
        """The sum over the ranks.

        Args:
            counts: What was counted on this rank.
        """

    def before(self, count: int) -> int:
        """How many were counted on the ranks before this one.

        Args:
            count: What was counted on this rank.
        """


class Chosen(NamedTuple):
    """The selected entries of a tensor.

    Attributes:
        positions: Their positions in memory order, ascending.
        stride: The strides of the scores, which say what memory order is.
    """

    positions: Tensor
    stride: tuple[int, ...]


class Cut(NamedTuple):
    """The result of a selection over several tensors.

    Attributes:
        counts: How many entries of each tensor are selected.
        spent: The cost of all of them.
        value: The smallest selected score.
        below: The largest score that is not selected; None if it was not met on the way.
        chosen: The selected entries of each tensor; None if they were not collected, or are too many.
    """

    counts: list[int]
    spent: int
    value: float
    below: float | None
    chosen: list[Chosen | None]


class _Scored(NamedTuple):
    """What to select from: functions that compute scores, and for each the cost of an entry and its shards."""

    sources: Sequence[Callable[[], Tensor]]
    costs: Sequence[int]
    shards: Sequence[Shards | None]
    dtype: torch.dtype


class _Part(NamedTuple):
    """A tensor's entries, compared with two bounds."""

    above: int  # how many scores are above `high`
    between: Tensor  # scores in (low, high]
    positions: Tensor | None  # of the scores above `low`, in memory order
    scores: Tensor | None
    stride: tuple[int, ...]

    def chosen(self, value: float, count: int) -> Chosen | None:
        """The entries whose score is at least this value, which is above `low`; None unless there are that many."""
        if self.positions is None or self.scores is None:
            return None
        positions = self.positions[self.scores >= value]
        return Chosen(positions, self.stride) if len(positions) == count else None


class _End(NamedTuple):
    """The smallest selected score, how many entries of each tensor are above it and equal to it, and what was met."""

    value: float
    above: list[int]
    equal: list[int]
    below: float | None = None
    parts: Sequence[_Part] = ()


def keep_largest(score: Scores, count: int, shards: Shards | None = None, guess: float | None = None) -> Tensor:
    """Mask of the `count` largest scores, ties by flat index.

    Args:
        score: The scores, or a function that computes them.
        count: How many entries the mask has.
        shards: How ranks share the tensor, if they do.
        guess: A score at which the selection may end, such as that of a selection over several tensors: if it does, one
            pass is enough.
    """
    values = _take(score)
    if count <= 0:
        return torch.zeros_like(values, dtype=torch.bool)
    if guess is not None and not shards:
        mask = masks.above(values, guess)
        above = masks.count(mask)
        if above == count - 1:  # the last selected entry has this score, unless it is in another tensor
            above += _add_ties_(mask, values, guess, 1)
        if above == count:
            return mask
    end = _end(_Scored([lambda: values], [1], [shards], values.dtype), count)
    mask = masks.above(values, end.value)
    ties = count - end.above[0]
    if shards:
        ties = max(ties - shards.before(int(torch.count_nonzero(values == end.value))), 0)
    _add_ties_(mask, values, end.value, ties)
    return mask


def select(
    scores: Sequence[Scores],
    budget: int,
    costs: Sequence[int] | None = None,
    shards: Sequence[Shards | None] | None = None,
    dtype: torch.dtype = torch.float32,
    near: float | None = None,
    collect: bool = False,
) -> Cut:
    """How many entries of each tensor are among the largest over all whose costs sum to at most `budget`.

    Scores are compared as they are: divide by the cost first for a score per cost.

    Args:
        scores: The scores of each tensor, or functions that compute them.
        budget: What the costs may sum to; with equal costs exactly that many entries are in.
        costs: The integer cost of one entry of each tensor; None: 1.
        shards: How ranks share each tensor, if they do.
        dtype: The type scores are compared in: float32 or float64.
        near: A score near which the selection probably ends, such as the `value` of the step before. It saves time if
            it is right, and never changes the result.
        collect: Keep the selected positions on the way, at 12 bytes for each entry that may be selected.
    """
    costs = [1] * len(scores) if costs is None else list(costs)
    shards = [None] * len(scores) if shards is None else list(shards)
    sources = [lambda s=s: _take(s).to(dtype) for s in scores]  # type: ignore[misc]
    end = _end(_Scored(sources, costs, shards, dtype), budget, near, collect)
    spent = sum(n * cost for n, cost in zip(end.above, costs))
    counts: list[int] = []
    for above, equal, cost in zip(end.above, end.equal, costs):
        ties = min(equal, (budget - spent) // cost)
        spent += ties * cost
        counts.append(above + ties)
    chosen = [part.chosen(end.value, count) for part, count in zip(end.parts, counts)]
    return Cut(counts, spent, end.value, end.below, [*chosen] or [None] * len(counts))


def _add_ties_(mask: Tensor, values: Tensor, value: float, count: int) -> int:
    """Add the first `count` entries of this value to the mask, by flat index; returns how many there were."""
    rows = 1 + _CHUNK // max(1, values[:1].numel()) if values.dim() else 1
    left = count
    for part, chosen in zip(values.split(rows), mask.split(rows)) if values.dim() else [(values, mask)]:
        if left <= 0:
            break
        equal = (part == value).nonzero()[:left]  # (ties, dimensions), in order of the flat index
        chosen[tuple(equal.t())] = True
        left -= len(equal)
    return count - left


def _end(scored: _Scored, budget: int, near: float | None = None, collect: bool = False) -> _End:
    sources, total = scored.sources, 0
    if not any(scored.shards) and all(cost == 1 for cost in scored.costs):
        if near is not None:
            bounds = torch.tensor([near * (1 - _NEAR), near * (1 + _NEAR)], dtype=scored.dtype)  # as scores are rounded
            low, high = sorted(bounds.tolist())
            end = _between(sources, budget, low, high, collect)
            if end is not None:
                return end
        samples = []
        for source in sources:
            values = masks.in_memory_order(source())
            samples.append(values[::_STRIDE].clone())
            total += values.numel()
            del values  # before the next layer's are made
        if 0 < budget <= total:
            low, high = _guess(torch.cat([s.to(samples[0].device) for s in samples]), budget / total)
            end = _between(sources, budget, low, high, collect)
            if end is not None:
                return end
    return _by_radix(scored, budget)


def _between(
    sources: Sequence[Callable[[], Tensor]], budget: int, low: float, high: float, collect: bool
) -> _End | None:
    """The end of the budget, in one pass; None if it is not between two bounds, or too many scores are."""
    parts: list[_Part] = []
    total = found = 0
    for source in sources:
        values = source()
        total += values.numel()
        parts.append(_split(values, low, high, collect))
        del values  # before the next layer's are made
        found += len(parts[-1].between)
        if found > max(total // 8, _CHUNK):  # nearly a copy of the scores: too much memory
            return None
    above = [part.above for part in parts]
    wanted = budget - sum(above)
    if wanted > found:  # in a long tie at the lower bound, or below it
        above = [n + len(part.between) for n, part in zip(above, parts)]
        equal = [int(torch.count_nonzero(source() == low)) for source in sources]
        return _End(low, above, equal) if wanted <= found + sum(equal) else None
    if wanted <= 0:
        return None
    scores = torch.cat([part.between.to(parts[0].between.device) for part in parts])
    value = float(scores.kthvalue(found - wanted + 1).values)
    below = float(scores.kthvalue(found - wanted).values) if wanted < found else None
    above = [n + int(torch.count_nonzero(masks.above(part.between, value))) for n, part in zip(above, parts)]
    equal = [int(torch.count_nonzero(part.between == value)) for part in parts]
    return _End(value, above, equal, below, parts)


def _split(scores: Tensor, low: float, high: float, collect: bool) -> _Part:
    """Compare a tensor's scores with two bounds."""
    values = masks.in_memory_order(scores)
    above, between = 0, []
    positions: list[Tensor] = []
    passed: list[Tensor] = []  # the scores at these positions
    for number, chunk in enumerate(values.split(_CHUNK)):
        over = masks.above(chunk, low)
        count = masks.count(over)
        if count * masks.SPARSE > len(chunk):
            higher = masks.above(chunk, high)
            above += masks.count(higher)
            between.append(chunk[masks.positions(over ^ higher)])
            collect = False
            continue
        place = masks.positions(over)
        up = chunk[place]
        between.append(up[up <= high])
        above += count - len(between[-1])
        if collect:
            positions.append(place.add_(number * _CHUNK))
            passed.append(up)
    if not collect:
        return _Part(above, torch.cat(between), None, None, scores.stride())
    return _Part(above, torch.cat(between), torch.cat(positions), torch.cat(passed), scores.stride())


def _guess(sample: Tensor, share: float) -> tuple[float, float]:
    """Two scores between which, very likely, the cut lies that keeps this share."""
    rank, margin = share * len(sample), _MARGIN * (len(sample) * share * (1 - share)) ** 0.5 + _MARGIN
    low, high = math.ceil(rank + margin), math.floor(rank - margin)  # ranks in the sample; the largest score has rank 1

    def score_at(rank: int) -> float:
        return float(sample.kthvalue(len(sample) - rank + 1).values)

    return score_at(low) if low <= len(sample) else -math.inf, score_at(high) if high > 0 else math.inf


def _by_radix(scored: _Scored, budget: int) -> _End:
    """The end of the budget, one digit of 16 bits per pass, and a pass to count what is above it."""
    sources, costs, shards, dtype = scored
    bits = torch.finfo(dtype).bits
    prefix: int | None = None
    spent = 0
    for shift in range(bits - _DIGIT, -1, -_DIGIT):
        total = torch.zeros(())
        for source, cost, shard in zip(sources, costs, shards):
            counts = _histogram(_order_keys_(source().clone()), shift, prefix)
            total = (shard.sum(counts) if shard else counts) * cost + total.to(counts)
        at_or_above = total.flip(0).cumsum(0).flip(0)
        # The highest digit whose bin does not fit into the budget as a whole (the lowest digit if all fit).
        digit = max(int(torch.count_nonzero(at_or_above + spent > budget)) - 1, 0)
        spent += int(at_or_above[digit] - total[digit])
        prefix = digit - (1 << (_DIGIT - 1)) if prefix is None else (prefix << _DIGIT) + digit  # keys are signed
    assert prefix is not None
    value = _value_of(prefix, dtype)
    above, equal = [], []
    for source, shard in zip(sources, shards):
        values = source()
        both = torch.stack([torch.count_nonzero(masks.above(values, value)), torch.count_nonzero(values == value)])
        del values  # before the next layer's are made
        n_above, n_equal = (shard.sum(both) if shard else both).tolist()
        above.append(n_above)
        equal.append(n_equal)
    return _End(value, above, equal)


def _histogram(keys: Tensor, shift: int, prefix: int | None) -> Tensor:
    """Counts of the next digit of the keys that begin with `prefix`."""
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
    """The scores, 32 or 64 bits wide."""
    values = score.detach() if isinstance(score, Tensor) else score()
    return values if values.dtype == torch.float64 else values.float()


def _order_keys_(values: Tensor) -> Tensor:
    """Turn floats, in place, into integers of the same order."""
    flat = masks.in_memory_order(values)
    ints = torch.int64 if flat.dtype == torch.float64 else torch.int32
    for chunk in flat.split(_CHUNK):
        chunk.add_(0.0)  # turns -0.0 into 0.0, so that the two tie
        raw = chunk.view(ints)
        # The bits of negative floats are in reverse order: flip all but the sign.
        raw.bitwise_xor_((raw >> (torch.iinfo(ints).bits - 1)).bitwise_and_(torch.iinfo(ints).max))
    return flat.view(ints)


def _value_of(key: int, dtype: torch.dtype) -> float:
    """The float whose key this is."""
    ints = torch.int64 if dtype == torch.float64 else torch.int32
    return float(torch.tensor(key ^ ((key >> 63) & torch.iinfo(ints).max), dtype=ints).view(dtype))
