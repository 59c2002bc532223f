"""EAST's cyclic sparsity (Li et al. 2024): the density rises and falls in cycles before training at the final one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rankprune.core.keywords import PeriodicKeywords, of_plan, plan_keywords
from rankprune.core.method import Group, PrunableLayer, register
from rankprune.core.plan import Periodic, Plan, Run
from rankprune.core.schedules import Step, as_step, check_count, cyclic
from rankprune.methods.shared.sparse_learning import SparseLearning


@dataclass(frozen=True, kw_only=True)
class Cycles(Periodic):
    """Updates at even distances; until `cycle_end` the budget follows `cycles` cosines, then it is the final one.

    Args:
        every: Steps between two updates; None: derived from the length of training.
        update_end: No update takes place at or after this step; None: at the end of training.
        cycles: How many times the density rises and falls.
        peak: The highest density of a cycle, as a multiple of the final one.
        cycle_end: The step at which the cycles are over; the last update is always at the final density.
    """

    varies: ClassVar[bool] = True
    cycles: int = 2
    peak: float = 3.0
    cycle_end: Step = 0.4

    def __post_init__(self) -> None:
        check_count(self.cycles, "cycles", "cycles")
        if not self.peak >= 1.0:
            raise ValueError(f"peak={self.peak!r} is below 1: give how many times the final density a cycle reaches")

    def steps(self, run: Run) -> Sequence[int]:
        as_step(self.cycle_end, run.total_steps, "cycle_end")
        return super().steps(run)

    def reached(self, run: Run) -> int:
        end = as_step(self.cycle_end, run.total_steps, "cycle_end")
        return next((step for step in run.steps if step >= end), run.steps[-1])

    def budget(self, done: int, run: Run) -> int:
        if done == 0 or run.steps[done - 1] >= self.reached(run):
            return run.final
        high = min(self.peak * run.final, run.total)
        end = as_step(self.cycle_end, run.total_steps, "cycle_end")
        return round(cyclic(run.final, high, end, self.cycles)(run.steps[done - 1]))


@plan_keywords(kw_only=True)
class CyclesKeywords(PeriodicKeywords):
    """The keywords of `Cycles`."""

    cycles: int = of_plan()
    peak: float = of_plan()
    cycle_end: Step = of_plan()


@register("east", paper="Li et al. 2024, arXiv:2411.13545", family="drop and grow", needs=("grad",))
@dataclass(kw_only=True)
class EAST(SparseLearning, CyclesKeywords):
    """Let the density swing between the final one and `peak` times as much, then go on as RigL does.

    Until `cycle_end` the density follows `cycles` cosines: where it falls, each layer's smallest weights leave, and
    where it rises, those with the largest gradient enter; nothing else is exchanged. From the first update at or after
    `cycle_end` on the density is the final one, and layers exchange weights. Of EAST this is the cyclic sparsity alone:
    dynamic ReLU and shared weights change the network.
    """

    distribution: str = "erk"
    plan: Plan = Cycles()

    def fraction(self, group: Group) -> float:
        in_cycles = group.step < group.plan.reached
        return 0.0 if in_cycles else super().fraction(group)

    def kept_of(self, group: Group, layer: PrunableLayer, count: int) -> Tensor:
        return super().kept_of(group, layer, min(count, layer.kept()))
