"""Gradual magnitude pruning (Zhu & Gupta 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rankprune.core.keywords import GradualKeywords
from rankprune.core.method import PrunableLayer, Score, register
from rankprune.core.plan import Gradual, Plan


@register("gmp", paper="Zhu & Gupta 2017, arXiv:1710.01878", family="magnitude")
@dataclass(kw_only=True)
class GMP(Score, GradualKeywords):
    """Cut the smallest weights little by little while training, along a cubic or exponential schedule."""

    plan: Plan = Gradual(density_schedule="cubic")

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.weight.abs()
