"""How many weights stay, in total and in each layer. Pure functions.

kept = round-half-even(N (1 - sparsity)); fractions become integers by largest remainder; no layer becomes empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, get_args

import torch
from torch import Tensor

Distribution = Literal["global", "lamp", "uniform", "uniform_dense_first", "er", "erk"]
DISTRIBUTIONS: tuple[str, ...] = get_args(Distribution)


def kept(total: int, sparsity: float) -> int:
    """Number of weights that stay of `total`, computed from the decimal digits of the sparsity.

    In floats 250 · (1 - 0.99) is 2.5000000000000022, which would round up where the exact 2.5 rounds to even.

    Args:
        total: The number of weights (or MACs).
        sparsity: The share to cut.
    """
    return round(total * (1 - Fraction(repr(float(sparsity)))))


def layer_densities(shapes: Sequence[Sequence[int]], sparsity: float, distribution: str = "erk") -> list[float]:
    """Density of each layer, such that the overall density is 1 - sparsity.

    uniform: the same everywhere. uniform_dense_first: the first layer is dense and the others have one density, as in
    RigL's uniform runs (which do not count the first layer: for that leave it out with `dense=`). er: proportional to
    (n_in + n_out) / (n_in n_out) (Mocanu et al. 2018). erk: proportional to the sum over the product of all dimensions
    (Evci et al. 2020). A layer whose density would exceed 1 is dense, and the others share the rest.

    Args:
        shapes: The shape of each weight.
        sparsity: The share to cut over all of them.
        distribution: One of those above.
    """
    density = 1.0 - sparsity
    if distribution == "uniform":
        return [density] * len(shapes)
    sizes = [math.prod(shape) for shape in shapes]
    if distribution == "uniform_dense_first":
        return _dense_first(sizes, sparsity) if len(shapes) > 1 else [density]
    if distribution not in ("er", "erk"):
        raise ValueError(f"distribution {distribution!r} has no layer densities of its own: use uniform, er or erk")
    counted = [tuple(shape) if distribution == "erk" else tuple(shape[:2]) for shape in shapes]
    raw = [sum(dims) / math.prod(dims) for dims in counted]
    dense: set[int] = set()
    while len(dense) < len(shapes):
        # The density of a layer that is not dense is epsilon · raw; epsilon follows from the total.
        free = [i for i in range(len(shapes)) if i not in dense]
        epsilon = (density * sum(sizes) - sum(sizes[i] for i in dense)) / sum(raw[i] * sizes[i] for i in free)
        peak = max(raw[i] for i in free)
        if epsilon * peak <= 1.0:
            return [1.0 if i in dense else epsilon * raw[i] for i in range(len(shapes))]
        dense |= {i for i in free if raw[i] == peak}
    return [1.0] * len(shapes)


def _dense_first(sizes: Sequence[int], sparsity: float) -> list[float]:
    total = (1.0 - sparsity) * sum(sizes)
    left, others = total - sizes[0], sum(sizes[1:])
    if left < len(sizes) - 1:
        raise ValueError(
            f"sparsity={sparsity:.6g} leaves {total:.0f} weights, not enough for a dense first "
            f"layer of {sizes[0]}: use distribution='uniform', or leave that layer out with dense="
        )
    return [1.0, *[left / others] * (len(sizes) - 1)]


def layer_counts(shapes: Sequence[Sequence[int]], total_kept: int, distribution: str = "erk") -> list[int]:
    """Integer number of weights that stay in each layer; they sum to `total_kept`.

    Args:
        shapes: The shape of each weight.
        total_kept: How many weights stay over all layers.
        distribution: As in `layer_densities`.
    """
    sizes = [math.prod(shape) for shape in shapes]
    sparsity = 1.0 - total_kept / sum(sizes)
    shares = [d * n for d, n in zip(layer_densities(shapes, sparsity, distribution), sizes)]
    return at_least_one(largest_remainder(shares, total_kept, sizes))


def lamp_scores(weight: Tensor) -> Tensor:
    """LAMP (Lee et al. 2021, eq. 3): w² over the sum of all squares in the layer that are not smaller, w² included.

    The largest weight of a layer scores 1 and the others less, in the order of magnitude, so that one threshold for all
    layers is layer-adaptive magnitude pruning. Of equal magnitudes the earlier one ranks higher; a zero scores 0.

    Args:
        weight: The weight of one layer.
    """
    tiny = torch.finfo(torch.float64).tiny
    size = weight.detach().abs().flatten().double()
    square = size.div_(size.max().clamp_min(tiny)).square_() if len(size) else size  # scaled: squares cannot overflow
    ranked, order = square.sort(descending=True, stable=True)
    scores = ranked / ranked.cumsum(0).clamp_min(tiny)
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    return torch.empty_like(scores).scatter_(0, order, scores).to(dtype).view(weight.shape)


def largest_remainder(shares: Sequence[float], total: int, capacity: Sequence[int]) -> list[int]:
    """Integers near `shares` that sum to `total` and stay within `capacity`; ties go to the earlier one.

    Args:
        shares: The shares before rounding.
        total: What the integers sum to.
        capacity: The upper bound of each.
    """
    counts = [min(math.floor(share), limit) for share, limit in zip(shares, capacity)]
    order = sorted(range(len(counts)), key=lambda i: (counts[i] - shares[i], i))
    step = 1 if sum(counts) <= total else -1
    if step < 0:  # by rounding errors of the shares: take from those with the smallest remainder
        order.reverse()
    while sum(counts) != total:
        before = sum(counts)
        for i in order:
            if sum(counts) != total and 0 <= counts[i] + step <= capacity[i]:
                counts[i] += step
        if sum(counts) == before:
            raise ValueError(f"{total} weights do not fit into layers of {sum(capacity)} in all")
    return counts


def at_least_one(counts: Sequence[int]) -> list[int]:
    """Give each empty layer one weight, taken from the largest.

    Args:
        counts: Weights kept per layer.
    """
    counts = list(counts)
    for i in [i for i, count in enumerate(counts) if count == 0]:
        largest = max(range(len(counts)), key=lambda j: (counts[j], -j))
        if counts[largest] > 1:
            counts[largest] -= 1
            counts[i] = 1
    return counts
