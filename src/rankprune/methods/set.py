"""SET, sparse evolutionary training (Mocanu et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rankprune.core.keywords import PeriodicKeywords
from rankprune.core.method import DropGrow, Group, PrunableLayer, register
from rankprune.core.schedules import value_at
from rankprune.methods.shared.itop import itop_settings


@register("set", paper="Mocanu et al. 2018, arXiv:1707.04780", family="drop and grow")
@dataclass(kw_only=True)
class SET(DropGrow, PeriodicKeywords):
    """Start sparse at random; drop the weights nearest zero on either side and grow as many at random."""

    distribution: str = "erk"

    def kept_of(self, group: Group, layer: PrunableLayer, count: int) -> Tensor:
        """All but the share of the smallest positive and of the smallest negative weights."""
        kept, share = layer.mask.new_zeros(layer.mask.shape), value_at(self.grow, group.step)
        for sign in (layer.weight >= 0, layer.weight < 0):
            active = layer.mask & sign
            size = layer.count(active)
            kept |= group.keep(layer, self.drop_score, size - int(share * size), among=active)
        return kept

    def grow_score(self, layer: PrunableLayer) -> Tensor:
        return layer.random()

    @classmethod
    def itop(cls, total_steps: int, **changes: Any) -> SET:
        """SET-ITOP: an update in 1,500 steps, or 65 in a shorter training, each of half of every layer.

        Other settings may be given as `changes`. See `RigL.itop`.

        Args:
            total_steps: Optimizer steps of the training.
            changes: Other settings.
        """
        return cls(**{**itop_settings(1_500, total_steps), **changes})
