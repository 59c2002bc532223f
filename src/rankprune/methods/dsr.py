"""DSR, dynamic sparse reparameterization (Mostafa & Wang 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from rankprune.core.keywords import PeriodicKeywords
from rankprune.core.method import Group, PrunableLayer, register
from rankprune.core.plan import Periodic, Plan, Run
from rankprune.core.schedules import Value, as_step, value_at
from rankprune.methods.shared.redistribute import Redistributing

PHASES = ((0.125, 1), (0.4, 2), (0.7, 4), (1.0, 8))  # until this share of training the period is so many times `every`


@dataclass(frozen=True, kw_only=True)
class LengtheningPeriod(Periodic):
    """Updates whose distance grows from `every` to 8 times that over the phases of training."""

    def spaced(self, every: int, run: Run) -> Sequence[int]:
        steps, step, end = [], every, self.end_with(every, run)
        while step < end:
            steps.append(step)
            step += every * next(n for share, n in PHASES if step < as_step(share, run.total_steps) or share == 1.0)
        return steps


@register(
    "dsr", paper="Mostafa & Wang 2019, arXiv:1902.05967", family="drop and grow",
)  # fmt: skip
@dataclass(kw_only=True)
class DSR(Redistributing, PeriodicKeywords):
    """Cut below one global threshold and regrow at random, in each layer in proportion to what survived there.

    The threshold doubles or halves whenever fewer or more than asked for fall under it (`grow` is that aim as a share
    of all weights kept), so it finds its own height. The period of updates grows 1, 2, 4, 8 times over training.

    Args:
        threshold: The threshold at the start; it adapts from there.
    """

    grow: Value = 0.1
    plan: Plan = LengtheningPeriod(update_end=0.95)
    threshold: float = 1e-3  # at the start

    def __post_init__(self) -> None:
        if not self.threshold > 0.0:
            raise ValueError(f"threshold={self.threshold!r} stays there when it is doubled: give one above 0, as 1e-3")

    def start(self, group: Group) -> None:
        super().start(group)
        group.state["threshold"] = self.threshold

    def stay(self, group: Group) -> list[int]:
        threshold = group.state["threshold"]
        return [layer.count(layer.mask & (self.drop_score(layer) >= threshold)) for layer in group.layers]

    def shares(self, group: Group, stay: Sequence[int]) -> Sequence[float]:
        return stay

    def room(self, group: Group, stay: Sequence[int]) -> list[int]:
        """What was empty before: the ones just cut do not return, unless nothing else is left."""
        empty = [layer.numel - layer.kept() for layer in group.layers]
        return empty if sum(empty) >= group.budget - sum(stay) else super().room(group, stay)

    def grow_score(self, layer: PrunableLayer) -> Tensor:
        return layer.random().sub_(layer.mask.float())

    def growth_key(self, layer: PrunableLayer) -> Tensor:
        return self.grow_score(layer)  # random already

    def adapt(self, group: Group, freed: int) -> None:
        aim = value_at(self.grow, group.step) * group.budget
        group.state["threshold"] *= 0.5 if freed > 1.1 * aim else 2.0 if freed < 0.9 * aim else 1.0
