"""The rank as a pruning criterion: keep the weights that carry the tail of the spectrum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rankprune import rank
from rankprune.core.method import Extra, PrunableLayer


@dataclass
class TailTaylor(Extra):
    """Rank the weights of a layer by (1 − μ) w̄² + μ w̄ R / ρ instead of |w|, R the part of W̄ beyond rank k.

    Both terms sum to 1 over the layer: w̄ R distributes the tail energy ρ over the weights, and cutting w costs about
    twice its part. How many weights a layer keeps is left to the method. μ = 0 is magnitude.
    """

    name: ClassVar[str] = "tail_taylor"
    mu: float = 0.3
    delta: float = 0.2

    def __post_init__(self) -> None:
        if not 0.0 <= self.mu <= 1.0:
            raise ValueError(f"mu={self.mu!r} is not a share: give a number in [0, 1]")

    def score(self, layer: PrunableLayer, score: Tensor) -> Tensor:
        whole = layer.whole(torch.where(layer.mask, layer.value, 0.0))
        unit, tail = unit_and_tail(layer.matrix(whole), self.delta)
        energy = (unit * tail).sum()
        if not float(energy):
            return score
        mixed = (1 - self.mu) * unit.square() + (self.mu / energy) * unit * tail
        return layer.part(layer.like(mixed)).contiguous()


def unit_and_tail(weight: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """W̄ and R, from the closed form of the rank gradient, −(2/n)(R − ρ W̄), whose norm is (2/n) sqrt(ρ (1 − ρ)).

    Args:
        weight: W, with one row per output unit.
        delta: δ̃, the target for the share of energy beyond rank k.
    """
    norm = weight.norm()
    if not float(norm):
        return torch.zeros_like(weight), torch.zeros_like(weight)
    unit = weight / norm
    half = rank.rank_grad(weight, delta) * (-norm / 2)  # R − ρ W̄
    if 0.25 < delta < 0.75:  # the tail nearest δ̃ may lie on either side of 1/2
        return unit, half - rank.rank_loss(weight, delta) * unit
    spread = (0.25 - half.square().sum()).clamp_min(0).sqrt()  # of ρ around 1/2; δ̃ says on which side it lies
    rho = 0.5 - spread if delta <= 0.25 else 0.5 + spread
    return unit, half + rho * unit
