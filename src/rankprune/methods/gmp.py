"""Gradual magnitude pruning (Zhu & Gupta 2017)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from rankprune.core.method import Gradual, PrunableLayer, Score, register


@register("gmp", paper="Zhu & Gupta 2017, arXiv:1710.01878", family="magnitude")
@dataclass
class GMP(Gradual, Score):
    """Cut the smallest weights little by little while training, along a cubic or exponential schedule."""

    density_schedule: Literal["exponential", "cubic"] = field(default="cubic", kw_only=True)

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.weight.abs()
