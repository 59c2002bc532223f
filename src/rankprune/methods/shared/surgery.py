"""The base of methods that follow the optimal brain surgeon (Hassibi & Stork 1993): the cost of removing a weight."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rankprune.core.method import Group, PrunableLayer, Score
from rankprune.core.plan import CubicRounds, Plan

from .probe import refuse_shards


@dataclass(kw_only=True)
class Surgery(Score):
    """Removing w costs w²/(2 [F⁻¹]_ww) under a quadratic model with curvature F; [F⁻¹]_ww is in `layer.temp`.

    `rounds` evenly spaced prunings follow Zhu & Gupta's cubic up to `prune_end`, where the last reaches the target
    exactly; with prune_end=0, or by `rankprune.prune`, there is one, at once.
    """

    plan: Plan = CubicRounds(rounds=8, prune_end=0.5)

    def start(self, group: Group) -> None:
        refuse_shards(group)
        super().start(group)

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.weight.square() / (2 * layer.temp["inverse_diagonal"])
