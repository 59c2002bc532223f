"""The base of SNFS, GraNet and SViT-E, whose code shares the rounding and a prune rate that stays above zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from rankprune.core.method import DropGrow, Group, PrunableLayer
from rankprune.core.schedules import Value, cosine, value_at

LEAST = 0.005


@dataclass(kw_only=True)
class SparseLearning(DropGrow):
    """After the optimizer step, drop the smallest and grow by gradient, until just before the last step of training."""

    grow: Value = 0.5

    def fraction(self, group: Group) -> float:
        """The prune rate: a cosine over all of training from `grow` to 0.005."""
        first = value_at(self.grow, group.step)
        return cosine(first, min(first, LEAST), group.total_steps)(group.step)

    def kept_of(self, group: Group, layer: PrunableLayer, count: int) -> Tensor:
        return group.keep(layer, self.drop_score, count - math.ceil(count * self.fraction(group)), among=layer.mask)

    def grow_score(self, layer: PrunableLayer) -> Tensor:
        return layer.grad.abs()
