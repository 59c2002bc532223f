"""One-shot random pruning: the floor every method must beat."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rankprune.core.method import PrunableLayer, Score, register
from rankprune.core.plan import AtOnce, Plan


@register("random", paper="Liu et al. 2022, arXiv:2202.02643", family="at initialisation", moves=False)
@dataclass(kw_only=True)
class Random(Score):
    """Cut random weights once, at the start, then train what is left."""

    plan: Plan = AtOnce()

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.random()
