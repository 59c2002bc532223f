"""What attach computes from a plan, once: when masks are updated, and the budget after each update."""

from __future__ import annotations

import bisect
from array import array

from .plan import Plan, Run


class PlannedUpdates:
    """The updates of one group of weights: steps and budgets, computed once at attach.

    Attributes:
        steps: The optimizer steps of the updates.
        budgets: The budget at attach, and after each update.
        reached: The step from which on the budget is the final one.
        end: The step before which updates take place.
        every: The period, where the plan has one.
        varies: Whether the budget changes from update to update.
    """

    def __init__(self, plan: Plan, run: Run) -> None:
        self.steps = run.steps
        self.budgets = array("q", (plan.budget(done, run) for done in range(len(run.steps) + 1)))
        if run.steps:
            self.budgets[-1] = run.final
        self.reached, self.end, self.varies = plan.reached(run), plan.end(run), plan.varies
        self.every = run.steps[0] if plan.periodic else None

    def done(self, step: int) -> int:
        """How many updates there are up to this step. A retried update counts as the one it stands for.

        Args:
            step: An optimizer step, from 1; 0 is attach.
        """
        return bisect.bisect_right(self.steps, step)

    def budget(self, step: int) -> int:
        """The budget from this step on.

        Args:
            step: An optimizer step, from 1; 0 is attach.
        """
        return self.budgets[self.done(step)]
