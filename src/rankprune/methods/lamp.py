"""LAMP, layer-adaptive magnitude-based pruning (Lee et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rankprune.core.keywords import RoundsAtRateKeywords
from rankprune.core.method import PrunableLayer, Score, register
from rankprune.core.plan import Plan, RoundsAtRate


@register("lamp", paper="Lee et al. 2021, arXiv:2010.07611", family="magnitude")
@dataclass(kw_only=True)
class LAMP(Score, RoundsAtRateKeywords):
    """Cut the smallest weights by their share of the squares that survive in their layer, in rounds or at once.

    The score of a weight is w² over the sum of the squares in its layer that are not smaller (`budget.lamp_scores`).
    Within a layer that is the order of magnitude, so the score only decides how much each layer keeps, and
    `distribution="lamp"` does that for any method; here it is the default. As its authors do, prune, train on and
    prune again: as many times as rounds of at most `rate` of what is left need, at even distances up to `prune_end`.
    With `prune_end=0`, or by `rankprune.prune`, there is one pruning, at once.
    """

    distribution: str = "lamp"
    plan: Plan = RoundsAtRate()

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.weight.abs()
