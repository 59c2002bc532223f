"""A fixed mask: for fine-tuning a network that is sparse already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rankprune.core.method import Group, PrunableLayer, Score, register
from rankprune.core.plan import AtOnce, Plan


@register("static", paper="", family="magnitude", moves=False)
@dataclass(kw_only=True)
class Static(Score):
    """Keep the zeros that are there; where a higher sparsity is asked for, cut the smallest weights once."""

    takes_zeros: ClassVar[bool] = True
    plan: Plan = AtOnce()

    def final_budget(self, group: Group) -> int:
        for layer in group.layers:
            layer.mask.copy_(layer.weight != 0)
        nonzero = group.spent()
        return nonzero if self.sparsity is None else min(nonzero, super().final_budget(group))

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.weight.abs()
