"""The soft top-k mask of Spartan: an entropy-regularised transport problem, solved for its one unknown.

Weight i has mass c_i, its cost; k of the total mass goes to "kept" and the rest to "cut". A unit of mass in "kept" is
worth z_i = |w_i|/c_i. With entropy of strength 1/β the optimum keeps the share m_i = σ(β (z_i - μ)) of each weight,
where μ, the price of the budget, makes Σ c_i m_i = k. (Sinkhorn's iteration finds the same μ.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rankprune.core.shards import Shards

_ITERATIONS = 100  # at most; Newton's method needs a few


class Part(NamedTuple):
    """One of the tensors that share a budget: its values z, the cost of an entry, and how ranks share it."""

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
    """The μ at which Σ c σ(β (z - μ)) is the budget, by Newton's method within a bracket; -inf if everything fits.

    Args:
        parts: The tensors that share the budget.
        budget: What they may spend together.
        beta: β, the sharpness.
        start: A first guess of μ, such as that of the last step.
        tolerance: The allowed error, as a share of the budget; sums of float32 are not much finer than the default.
    """
    total = sum(part.cost * part.entries() for part in parts)
    if budget >= total:
        return -math.inf
    # At `low` every share is at least budget/total, at `high` at most, and so is their mean: the root lies between.
    shift = math.log(budget / (total - budget)) / beta
    low = -max(float(part.shards.max(-part.values)) for part in parts) - shift
    high = max(float(part.shards.max(part.values)) for part in parts) - shift
    guess = start if low < start < high else (low + high) / 2
    for _ in range(_ITERATIONS):
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
    """The gradient with respect to w, given that with respect to w m(w), for a tensor with a budget of its own.

    From Σ c m = k: ∂μ/∂z_j = s_j/Σs with s = m (1 - m). With a = grad · w, the gradient with respect to m, that with
    respect to z is β s (a - ā), where ā is the mean of a weighted by s.

    Args:
        part: The tensor, with its z.
        weight: Its weights w.
        grad: The gradient with respect to w m(w).
        beta: β, the sharpness.
        mu: μ, the price.
    """
    share = shares(part.values, beta, mu)
    spread, pull = share * (1 - share), grad * weight
    weighted, whole = part.sum(torch.stack([(spread * pull).sum(), spread.sum()]))
    mean = weighted / whole.clamp_min(torch.finfo(whole.dtype).tiny)
    return grad * share + weight.sign() * spread * (pull - mean) * (beta / part.cost)


def _kept(parts: Sequence[Part], beta: float, mu: float) -> tuple[float, float]:
    """Σ c m, and minus its derivative with respect to μ, β Σ c m (1 - m)."""
    kept, squares = 0.0, 0.0
    for part in parts:
        m = shares(part.values, beta, mu)
        sums = torch.stack([m.sum(dtype=torch.float64), m.square_().sum(dtype=torch.float64)])
        one, two = part.sum(sums).tolist()
        kept, squares = kept + part.cost * one, squares + part.cost * two
    return kept, beta * (kept - squares)
