"""The soft top-k mask of Spartan: a transport problem with entropy, solved for its one unknown.

Each weight i has a mass of its cost c_i, and k of the total goes to "kept", the rest to "cut". Moving a unit of it to
"kept" is worth z_i = |w_i|/c_i. With entropy of strength 1/β the best plan keeps the share m_i = σ(β (z_i - μ)) of
each, where μ, the price of the budget, makes Σ c_i m_i = k. (Sinkhorn's iteration finds the same μ.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rankprune.core.shards import Shards

_ROUNDS = 100


class Part(NamedTuple):
    """A tensor that shares the budget with others: its values z, what one entry costs, and how ranks share it."""

    values: Tensor
    cost: int = 1
    shards: Shards = Shards()

    def sum(self, sums: Tensor) -> Tensor:
        """The sum over the ranks that share the tensor.

        Args:
            sums: The sums on this rank.
        """
        return self.shards.sum(sums)

    def entries(self) -> int:
        """The number of entries, over the ranks that share the tensor."""
        return int(self.shards.sum(self.values.new_tensor(self.values.numel(), dtype=torch.int64)))


def price(parts: Sequence[Part], budget: float, beta: float, start: float = math.nan, tolerance: float = 1e-5) -> float:
    """The μ at which Σ c σ(β (z - μ)) is the budget, by Newton's method kept within a bracket; -inf if all fits.

    `start` is a guess, such as the μ of the last step; `tolerance` is a share of the budget (sums of 32-bit shares are
    not much finer than the default).

    Args:
        parts: The tensors that share the budget.
        budget: What they may spend together.
        beta: β, the sharpness.
        start: A first guess of μ.
        tolerance: The error of the budget that is allowed, as a share.
    """
    total = sum(part.cost * part.entries() for part in parts)
    if budget >= total:
        return -math.inf
    # With every share at least (or at most) budget/total, so is their mean: the ends of the bracket.
    shift = math.log(budget / (total - budget)) / beta
    low = -max(float(part.shards.max(-part.values)) for part in parts) - shift
    high = max(float(part.shards.max(part.values)) for part in parts) - shift
    guess = start if low < start < high else (low + high) / 2
    for _ in range(_ROUNDS):
        kept, slope = _kept(parts, beta, guess)
        if abs(kept - budget) <= tolerance * budget:
            break
        low, high = (guess, high) if kept > budget else (low, guess)
        step = (kept - budget) / slope if slope else math.inf
        guess = guess + step if low < guess + step < high else (low + high) / 2
    return guess


def shares(values: Tensor, beta: float, mu: float) -> Tensor:
    """m = σ(β (z - μ)); 1 where the price is -inf.

    Args:
        values: z.
        beta: β, the sharpness.
        mu: μ, the price.
    """
    return torch.sigmoid((values - mu) * beta)


def pull_back(part: Part, weight: Tensor, grad: Tensor, beta: float, mu: float) -> Tensor:
    """The gradient by w of a loss whose gradient by w m(w) is `grad`, under a budget of this tensor's own.

    From Σ c m = k: ∂μ/∂z_j = s_j/Σs with s = m (1 - m), so with a = grad · w, the gradient by m, that by z is
    β s (a - ā), ā the mean of a weighted by s.

    Args:
        part: The tensor, with its z.
        weight: Its weights w.
        grad: The gradient by w m(w).
        beta: β, the sharpness.
        mu: μ, the price.
    """
    share = shares(part.values, beta, mu)
    spread, pull = share * (1 - share), grad * weight
    weighted, whole = part.sum(torch.stack([(spread * pull).sum(), spread.sum()]))
    mean = weighted / whole.clamp_min(torch.finfo(whole.dtype).tiny)
    return grad * share + weight.sign() * spread * (pull - mean) * (beta / part.cost)


def _kept(parts: Sequence[Part], beta: float, mu: float) -> tuple[float, float]:
    """Σ c m, and minus its slope by μ, β Σ c m (1 - m)."""
    kept, squares = 0.0, 0.0
    for part in parts:
        m = shares(part.values, beta, mu)
        sums = torch.stack([m.sum(dtype=torch.float64), m.square_().sum(dtype=torch.float64)])
        one, two = part.sum(sums).tolist()
        kept, squares = kept + part.cost * one, squares + part.cost * two
    return kept, beta * (kept - squares)
