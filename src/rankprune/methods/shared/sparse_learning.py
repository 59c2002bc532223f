"""The base of SNFS, GraNet and SViT-E, whose implementations share the rounding and a prune rate above zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from rankprune.core.method import DropGrow, Group, PrunableLayer
from rankprune.core.schedules import Value, cosine, value_at

LAST_RATE = 0.005  # the prune rate at the end of training


@dataclass(kw_only=True)
class SparseLearning(DropGrow):
    """After the optimizer step, drop the smallest and grow by gradient, until just before the last step of training."""

    grow: Value = 0.5

    def fraction(self, group: Group) -> float:
        """The prune rate: a cosine over all of training from `grow` to 0.005."""
        first = value_at(self.grow, group.step)
        return cosine(first, min(first, LAST_RATE), group.total_steps)(group.step)

    def kept_of(self, group: Group, layer: PrunableLayer, count: int) -> Tensor:
        return group.keep(layer, self.drop_score, count - math.ceil(count * self.fraction(group)), among=layer.mask)

    def grow_score(self, layer: PrunableLayer) -> Tensor:
        return layer.grad.abs()
