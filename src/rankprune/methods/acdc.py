"""AC/DC, alternating compressed and decompressed training (Peste et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rankprune.core.cost import TrainingCost
from rankprune.core.keywords import PhasesKeywords
from rankprune.core.method import Group, PrunableLayer, Score, register
from rankprune.core.plan import Phases, Plan


@register(
    "acdc", paper="Peste et al. 2021, arXiv:2106.12379", family="dense and sparse phases",
)  # fmt: skip
@dataclass(kw_only=True)
class ACDC(Score, PhasesKeywords):
    """Train dense and sparse in turns, with the largest weights of all in each sparse phase, and end sparse.

    At the start of a dense phase the cut weights return at 0 and all momentum restarts; within a sparse phase the mask
    is fixed. The phases are shares of training: the authors' 100 epochs, scaled to any length.
    """

    cost: ClassVar[TrainingCost | None] = TrainingCost(step="1 and f in turns")
    plan: Plan = Phases(
        prune_at=(0.10, 0.20, 0.30, 0.40, 0.50, 0.60, 0.70, 0.85),
        restore_at=(0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75),
    )

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.weight.abs()

    def update(self, group: Group) -> None:
        if group.scheduled() < group.total:
            return super().update(group)
        group.budget = group.total
        for layer in group.layers:
            layer.mask.fill_(True)
        _restart_momentum(group)


def _restart_momentum(group: Group) -> None:
    """Zero the first moments of all parameters: new tensors, since a loaded checkpoint may share the old ones."""
    for optimizer in group.optimizers:
        for state in optimizer.state.values():
            for key in ("momentum_buffer", "exp_avg"):
                if isinstance(state.get(key), Tensor):
                    state[key] = torch.zeros_like(state[key])
