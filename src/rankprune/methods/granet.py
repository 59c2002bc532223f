"""GraNet (Liu et al. 2021): gradual pruning with zero-cost neuroregeneration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rankprune.core import budget as budgets
from rankprune.core.method import Gradual, Group, PrunableLayer, register
from rankprune.core.schedules import Step
from rankprune.methods.shared.sparse_learning import SparseLearning


@register(
    "granet", paper="Liu et al. 2021, arXiv:2106.10404", family="drop and grow", needs=("grad",),
)  # fmt: skip
@dataclass
class GraNet(Gradual, SparseLearning):
    """Cut the smallest weights of all little by little; each time, every layer also exchanges some by gradient.

    Starts dense, or with `start_density` 0.5 say from a random sparse net. The authors' last pruning event falls short
    of the target by (d_start - d_end) / n^3; here the last one lands on it exactly. As in their code, a weight that is
    cut and grown in the same event starts again from 0, without momentum.
    """

    restarts: ClassVar[bool] = True
    prune_end: Step = field(default=0.5, kw_only=True)
    density_schedule: Literal["exponential", "cubic"] = field(default="cubic", kw_only=True)
    start_density: float = field(default=1.0, kw_only=True)

    def default_end(self, every: int, total_steps: int) -> int:
        return SparseLearning.default_end(self, every, total_steps)  # regeneration goes on after the last pruning

    def first(self, group: Group) -> int:
        """How many weights are there at the start."""
        first = round(group.total * self.start_density)
        if not group.final <= first <= group.total:
            target = f"the {group.final / group.total:.4g} asked for and 1"
            raise ValueError(f"start_density={self.start_density} is not between {target}: start denser")
        return first

    def start(self, group: Group) -> None:
        if self.budget == "weights" and self.first(group) < group.total:
            group.budget = self.first(group)
            for layer, count in zip(group.layers, budgets.layer_counts([s.shape for s in group.layers], group.budget)):
                layer.mask.copy_(group.keep(layer, PrunableLayer.random, count))

    def scheduled(self, group: Group) -> int:
        left = (super().scheduled(group) - group.final) / max(group.total - group.final, 1)
        return round(group.final + (self.first(group) - group.final) * left)
