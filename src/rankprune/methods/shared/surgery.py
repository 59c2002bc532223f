"""What the heirs of the optimal brain surgeon share (Hassibi & Stork 1993): the cost of a weight, and when to cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rankprune.core.method import Group, PrunableLayer, Score
from rankprune.core.schedules import Step, as_step

from .probe import refuse_shards
from .rounds import check_rounds, evenly


@dataclass
class Surgery(Score):
    """Removing w costs w²/(2 [F⁻¹]_ww) under a quadratic model with curvature F; `layer.scratch` holds the diagonal.

    `rounds` prunings at even distances follow Zhu & Gupta's cubic up to `prune_end`, where the last lands on the target
    exactly; with prune_end=0, or by `rankprune.prune`, there is one, at once.
    """

    rounds: int = field(default=8, kw_only=True)
    prune_end: Step = field(default=0.5, kw_only=True)

    def __post_init__(self) -> None:
        check_rounds(self.info.name, self.rounds)

    def updates(self, total_steps: int) -> Sequence[int]:
        end = min(as_step(self.prune_end, total_steps, "prune_end"), total_steps)
        return evenly(0, end, self.rounds) if end else ()

    def start(self, group: Group) -> None:
        refuse_shards(group)
        super().start(group)

    def scheduled(self, group: Group) -> int:
        steps = len(group.updates())
        left = 1 - (group.update_number() + 1) / steps if steps else 0.0
        return group.final + round((group.total - group.final) * left**3)

    def score(self, layer: PrunableLayer) -> Tensor:
        assert layer.scratch is not None
        return layer.weight.square() / (2 * layer.scratch)
