"""LAMP, layer-adaptive magnitude-based pruning (Lee et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rankprune.core.method import Group, PrunableLayer, Score, register
from rankprune.core.schedules import Step, as_step
from rankprune.methods.shared.rounds import evenly, left_after, rounds_at_rate


@register("lamp", paper="Lee et al. 2021, arXiv:2010.07611", family="magnitude")
@dataclass
class LAMP(Score):
    """Cut the smallest weights by their share of the squares that survive in their layer, in rounds or at once.

    The score of a weight is w² over the sum of the squares in its layer that are not smaller (`budget.lamp_scores`).
    Within a layer that is the order of magnitude, so the score only settles what each layer keeps, and
    `distribution="lamp"` does that for any method; here it is the default. As its authors do, prune, train on and
    prune again: as many times as rounds of at most `rate` of what is left need, at even distances up to `prune_end`.
    With `prune_end=0`, or by `rankprune.prune`, there is one pruning, at once.
    """

    distribution: str = field(default="lamp", kw_only=True)
    rate: float = field(default=0.2, kw_only=True)
    prune_end: Step = field(default=0.6, kw_only=True)

    def updates(self, total_steps: int) -> Sequence[int]:
        assert self.sparsity is not None
        rounds = rounds_at_rate(self.sparsity, self.rate)
        end = min(as_step(self.prune_end, total_steps, "prune_end"), total_steps)
        return evenly(0, end, rounds) if end else ()

    def scheduled(self, group: Group) -> int:
        cuts = len(group.updates())
        return left_after(group, group.update_number() + 1, cuts) if cuts else group.final

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.weight.abs()
