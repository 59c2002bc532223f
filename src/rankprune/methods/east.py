"""EAST's cyclic sparsity (Li et al. 2024): the density rises and falls in cycles before training at the final one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rankprune.core.method import Group, PrunableLayer, register
from rankprune.core.schedules import Step, as_step, cyclic
from rankprune.methods.shared.sparse_learning import SparseLearning


@register("east", paper="Li et al. 2024, arXiv:2411.13545", family="drop and grow", needs=("grad",))
@dataclass
class EAST(SparseLearning):
    """Let the density swing between the final one and `peak` times as much, then go on as RigL does.

    Until `cycle_end` the density follows `cycles` cosines: where it falls, each layer's smallest weights leave, and
    where it rises, those with the largest gradient enter; nothing else is exchanged. From the first update at or after
    `cycle_end` on the density is the final one, and layers exchange weights. Of EAST this is the cyclic sparsity alone:
    dynamic ReLU and shared weights change the network.
    """

    distribution: str = field(default="erk", kw_only=True)
    cycles: int = field(default=2, kw_only=True)
    peak: float = field(default=3.0, kw_only=True)
    cycle_end: Step = field(default=0.4, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.cycles, bool) or not isinstance(self.cycles, int) or self.cycles < 1:
            raise ValueError(f"cycles={self.cycles!r} is not a number of cycles: give an int of 1 or more")
        if not self.peak >= 1.0:
            raise ValueError(f"peak={self.peak!r} is below 1: give how many times the final density a cycle reaches")

    def updates(self, total_steps: int) -> Sequence[int]:
        as_step(self.cycle_end, total_steps, "cycle_end")
        return super().updates(total_steps)

    def reached_at(self, group: Group) -> int:
        steps, end = group.updates(), as_step(self.cycle_end, group.total_steps, "cycle_end")
        return next((step for step in steps if step >= end), steps[-1])

    def in_cycles(self, group: Group) -> bool:
        """Whether the update at `group.step` belongs to the cycles; the last update never does."""
        return group.step < self.reached_at(group)

    def scheduled(self, group: Group) -> int:
        """The budget of the update at `group.step`."""
        if not self.in_cycles(group):
            return group.final
        end = as_step(self.cycle_end, group.total_steps, "cycle_end")
        high = min(self.peak * group.final, group.total)
        return round(cyclic(group.final, high, end, self.cycles)(group.step))

    def layer_counts(self, group: Group) -> list[int]:
        group.budget = self.scheduled(group)
        return group.counts(self.drop_score, group.budget)

    def fraction(self, group: Group) -> float:
        return 0.0 if self.in_cycles(group) else super().fraction(group)

    def kept_of(self, group: Group, layer: PrunableLayer, count: int) -> Tensor:
        return super().kept_of(group, layer, min(count, layer.kept()))
