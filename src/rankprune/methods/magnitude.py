"""One-shot magnitude pruning."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rankprune.core.method import PrunableLayer, Score, register
from rankprune.core.plan import AtOnce, Plan


@register("magnitude", paper="Janowsky 1989; Han et al. 2015, arXiv:1506.02626", family="magnitude", moves=False)
@dataclass(kw_only=True)
class Magnitude(Score):
    """Cut the smallest weights once, at the start, then train what is left."""

    plan: Plan = AtOnce()

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.weight.abs()
