"""PBW, learning both weights and connections (Han et al. 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rankprune.core.method import Group, PrunableLayer, Score, register
from rankprune.core.schedules import Step, as_step
from rankprune.methods.shared.rounds import check_rounds, evenly, left_after


@register(
    "pbw", paper="Han et al. 2015, arXiv:1506.02626", family="magnitude",
)  # fmt: skip
@dataclass
class PBW(Score):
    """Train dense, then several times prune by magnitude and train what is left on from its current values.

    A layer's threshold is q times the standard deviation of its weights, with one q for all layers ("std"), or one
    threshold for the whole network ("global"). Han et al. choose q by hand and take the sparsity that comes out; here
    each round's q is the one at which its budget is met exactly. The `rounds` are at even distances up to `prune_end`,
    and each takes the same share of what is left, so the last lands on the target.
    """

    at_once: ClassVar[bool] = False
    threshold: Literal["std", "global"] = field(default="std", kw_only=True)
    rounds: int = field(default=5, kw_only=True)
    prune_end: Step = field(default=0.6, kw_only=True)

    def updates(self, total_steps: int) -> Sequence[int]:
        if self.threshold not in ("std", "global"):
            raise ValueError(f"threshold={self.threshold!r} is unknown: use 'std' or 'global'")
        check_rounds("pbw", self.rounds)
        return evenly(0, max(1, min(as_step(self.prune_end, total_steps, "prune_end"), total_steps)), self.rounds)

    def scheduled(self, group: Group) -> int:
        return left_after(group, group.update_number() + 1, len(group.updates()))

    def update(self, group: Group) -> None:
        if self.threshold == "std":
            for layer in group.layers:
                layer.scratch = deviation(layer)
        super().update(group)

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.weight.abs() if layer.scratch is None else layer.weight.abs().div_(layer.scratch)


def deviation(layer: PrunableLayer) -> Tensor:
    """Standard deviation of the active weights of a layer; 1 where there is none to speak of."""
    active = layer.whole(layer.weight)[layer.whole(layer.mask.to(torch.uint8)).bool()]
    return active.std(correction=0) if active.unique().numel() > 1 else torch.ones_like(active.sum())
