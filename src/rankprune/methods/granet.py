"""GraNet (Liu et al. 2021): gradual pruning with zero-cost neuroregeneration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rankprune.core import budget as budgets
from rankprune.core.keywords import GradualKeywords, of_plan, plan_keywords
from rankprune.core.method import Group, PrunableLayer, register
from rankprune.core.plan import Gradual, Periodic, Plan, Run
from rankprune.core.schedules import Step
from rankprune.methods.shared.sparse_learning import SparseLearning


@dataclass(frozen=True, kw_only=True)
class GradualWithRegrowth(Gradual):
    """The density falls from `start_density` along a cubic; regeneration goes on after the last pruning.

    Args:
        every: Steps between two updates; None: derived from the length of training.
        update_end: No update takes place at or after this step; None: at the end of training.
        prune_end: The step at which the final density is reached.
        density_schedule: "exponential" or "cubic".
        start_density: The share of the weights that is there at the start.
    """

    prune_end: Step = 0.5
    density_schedule: Literal["exponential", "cubic"] = "cubic"
    start_density: float = 1.0

    def default_end(self, every: int, run: Run) -> int:
        return Periodic.default_end(self, every, run)

    def budget(self, done: int, run: Run) -> int:
        first = round(run.total * self.start_density)
        if not run.final <= first <= run.total:
            target = f"the {run.final / run.total:.4g} asked for and 1"
            raise ValueError(f"start_density={self.start_density} is not between {target}: start denser")
        left = (super().budget(done, run) - run.final) / max(run.total - run.final, 1)
        return round(run.final + (first - run.final) * left)


@plan_keywords(kw_only=True)
class GradualWithRegrowthKeywords(GradualKeywords):
    """The keywords of `GradualWithRegrowth`."""

    start_density: float = of_plan()


@register(
    "granet", paper="Liu et al. 2021, arXiv:2106.10404", family="drop and grow", needs=("grad",),
)  # fmt: skip
@dataclass(kw_only=True)
class GraNet(SparseLearning, GradualWithRegrowthKeywords):
    """Cut the smallest weights of all little by little; each time, every layer also exchanges some by gradient.

    Starts dense, or with `start_density` 0.5 say from a random sparse net. The authors' last pruning event falls short
    of the target by (d_start - d_end) / n^3; here the last one lands on it exactly. As in their code, a weight that is
    cut and grown in the same event starts again from 0, without momentum.
    """

    restarts: ClassVar[bool] = True
    plan: Plan = GradualWithRegrowth()

    def start(self, group: Group) -> None:
        if self.budget == "weights" and group.scheduled() < group.total:
            group.budget = group.scheduled()
            for layer, count in zip(group.layers, budgets.layer_counts([s.shape for s in group.layers], group.budget)):
                layer.mask.copy_(group.keep(layer, PrunableLayer.random, count))
