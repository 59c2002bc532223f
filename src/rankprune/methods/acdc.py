"""AC/DC, alternating compressed and decompressed training (Peste et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from rankprune.core.method import Group, PrunableLayer, Score, register
from rankprune.core.schedules import Step, as_step


@register(
    "acdc", paper="Peste et al. 2021, arXiv:2106.12379", family="dense and sparse phases",
)  # fmt: skip
@dataclass
class ACDC(Score):
    """Train dense and sparse in turns, with the largest weights of all in each sparse phase, and end sparse.

    At a restore the weights that were out return at 0 and all momentum restarts; within a sparse phase the mask stands.
    The phases are shares of training: the authors' 100 epochs, stretched to any length. The last prune is exact.
    """

    cost: ClassVar[str] = "1 and f in turns"
    prune_at: Sequence[Step] = field(default=(0.10, 0.20, 0.30, 0.40, 0.50, 0.60, 0.70, 0.85), kw_only=True)
    restore_at: Sequence[Step] = field(default=(0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75), kw_only=True)

    def phases(self, total_steps: int) -> dict[int, bool]:
        return phases(tuple(self.prune_at), tuple(self.restore_at), total_steps)

    def updates(self, total_steps: int) -> Sequence[int]:
        return list(self.phases(total_steps))

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.weight.abs()

    def update(self, group: Group) -> None:
        if list(self.phases(group.total_steps).values())[group.update_number()]:
            return super().update(group)
        group.budget = group.total
        for layer in group.layers:
            layer.mask.fill_(True)
        restart_momentum(group)


@lru_cache
def phases(prune_at: Sequence[Step], restore_at: Sequence[Step], total_steps: int) -> dict[int, bool]:
    """Step -> whether it is sparse from there on. A phase too short for one step gives way to the other, sparse one."""
    events = {max(as_step(step, total_steps, "restore_at"), 1): False for step in restore_at}
    events |= {max(as_step(step, total_steps, "prune_at"), 1): True for step in prune_at}
    if not events or not events[max(events)]:
        raise ValueError(f"prune_at={prune_at} must end later than restore_at={restore_at}: the run ends sparse")
    return dict(sorted(events.items()))


def restart_momentum(group: Group) -> None:
    """Zero the first moments of all parameters: new tensors, since a loaded checkpoint may share the old ones."""
    for optimizer in group.optimizers:
        for state in optimizer.state.values():
            for key in ("momentum_buffer", "exp_avg"):
                if isinstance(state.get(key), Tensor):
                    state[key] = torch.zeros_like(state[key])
