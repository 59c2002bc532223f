"""PBW, learning both weights and connections (Han et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rankprune.core.keywords import RoundsKeywords
from rankprune.core.method import Group, PrunableLayer, Score, register
from rankprune.core.plan import Plan, Rounds


@dataclass(frozen=True, kw_only=True)
class RoundsWhileTraining(Rounds):
    """Rounds of which none is at attach: there is always a training before the first pruning."""

    at_once: ClassVar[bool] = False


@register(
    "pbw", paper="Han et al. 2015, arXiv:1506.02626", family="magnitude",
)  # fmt: skip
@dataclass(kw_only=True)
class PBW(Score, RoundsKeywords):
    """Train dense, then several times prune by magnitude and train what is left on from its current values.

    A layer's threshold is q times the standard deviation of its weights, with one q for all layers ("std"), or one
    threshold for the whole network ("global"). Han et al. choose q by hand and take the sparsity that comes out; here
    each round's q is the one at which its budget is met exactly. The `rounds` are at even distances up to `prune_end`,
    and each takes the same share of what is left, so the last lands on the target.

    Args:
        threshold: "std": q times the standard deviation of a layer; "global": one threshold for the network.
    """

    plan: Plan = RoundsWhileTraining()
    threshold: Literal["std", "global"] = "std"

    def update(self, group: Group) -> None:
        if self.threshold == "std":
            for layer in group.layers:
                layer.temp["deviation"] = _deviation(layer)
        super().update(group)

    def score(self, layer: PrunableLayer) -> Tensor:
        size, spread = layer.weight.abs(), layer.temp.get("deviation")
        return size if spread is None else size.div_(spread)


def _deviation(layer: PrunableLayer) -> Tensor:
    """Standard deviation of the active weights of a layer; 1 where it is 0."""
    active = layer.whole(layer.weight)[layer.whole(layer.mask.to(torch.uint8)).bool()]
    return active.std(correction=0) if active.unique().numel() > 1 else torch.ones_like(active.sum())
