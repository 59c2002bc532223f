"""The layers one method works on, with their planned updates and budget; and extras, which compose with any method."""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import budget as budgets
from .form import MaskedForm
from .layer import PrunableLayer
from .plan import Plan, Run
from .select import Cut, keep_largest, select
from .summary import LayerCount, Timetable

if TYPE_CHECKING:
    from .method import Method

PerLayer = Callable[[PrunableLayer], Tensor]  # a score or a mask for each layer


class Extra:
    """Base of extras, which compose with any method. Each hook is optional."""

    name: ClassVar[str] = "extra"

    def check(self, method: Method) -> None:
        """Called at attach, to refuse a method that this extra cannot be combined with.

        Args:
            method: The method that it is added to.

        Raises:
            ValueError: The two cannot be combined.
        """

    def score(self, layer: PrunableLayer, score: Tensor) -> Tensor:
        """Called when survivors are chosen; returns the score to rank the layer's weights by, not how many stay.

        Args:
            layer: The layer.
            score: The method's score of each weight.
        """
        return score

    def reserve(self, group: Group) -> Mapping[PrunableLayer, Tensor]:
        """Called when an update begins. Returns masks, by layer, of positions that stay whatever their score.

        Args:
            group: The layers of one method.
        """
        return {}

    def before_step(self, layer: PrunableLayer) -> None:
        """Called before an optimizer step; `layer.parameter.grad` may be changed in place.

        Args:
            layer: The layer.
        """

    def after_step(self, layer: PrunableLayer) -> None:
        """Called after an optimizer step; `layer.weight` may be changed in place, zeros must stay zero.

        Args:
            layer: The layer.
        """

    def after_step_dense(self, parameter: nn.Parameter, lr: float) -> None:
        """Called after an optimizer step for each parameter that was stepped and is not pruned.

        Args:
            parameter: The parameter.
            lr: Its learning rate.
        """


class PlannedUpdates:
    """The mask updates of one group: a plan evaluated for its weights, once, at attach.

    Attributes:
        steps: The optimizer steps of the updates.
        budgets: The budget at attach, and after each update.
        reached: The step from which on the budget is the final one.
        end: The step before which updates take place.
        every: The period, if the plan has one.
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


@dataclass(eq=False)
class Group:
    """The layers one method works on, with their budget. The core owns it; a method reads it and sets masks.

    Attributes:
        method: The method.
        layers: Its layers.
        total_steps: Optimizer steps of the training.
        seed: Of random masks and growth.
        extras: What composes with the method.
        model: The whole network.
        data: Batches (inputs, targets), for methods that need them.
        loss_fn: The loss of outputs and targets, for methods that need it.
        optimizers: All attached optimizers.
        state: What the method keeps beside the state of its layers; saved.
        plan: When masks are updated, and the budgets; computed by `start`.
        form: How the weights are stored.
        step: The optimizer step of the update under way, from 1; 0 at attach.
        final: The budget at the end, in weights (or MACs).
        budget: The declared budget now.
        retry: Whether the last update met NaN or Inf and is tried again at the next step.
        last_cut: The score at which the selection of the step before ended, for methods that select at every step.
    """

    method: Method
    layers: list[PrunableLayer]
    total_steps: int
    seed: int
    extras: Sequence[Extra] = ()
    model: nn.Module | None = None
    data: Iterable[Any] | None = None
    loss_fn: Callable[..., Tensor] | None = None
    optimizers: Sequence[Optimizer] = ()
    state: dict[str, Any] = field(default_factory=dict)
    plan: PlannedUpdates = field(init=False)
    form: MaskedForm = field(init=False)
    step: int = 0
    final: int = 0
    budget: int = 0
    retry: bool = False
    last_cut: float | None = None

    def __post_init__(self) -> None:
        self.form = self.method.form(self.method)

    @property
    def total(self) -> int:
        """The budget of the dense layers, in weights (or MACs)."""
        return sum(layer.numel * layer.cost for layer in self.layers)

    def spent(self) -> int:
        """What the masks keep, in weights (or MACs)."""
        return sum(layer.kept() * layer.cost for layer in self.layers)

    def report_rows(self) -> list[LayerCount]:
        """The counts of each layer, for a report."""
        name = self.method.info.name
        return [LayerCount(x.name, tuple(x.shape), x.numel, x.kept(), name, x.rows, x.refills) for x in self.layers]

    def scheduled(self) -> int:
        """The budget that is planned for `step`."""
        return self.plan.budget(self.step)

    def timetable(self) -> Timetable:
        """When masks are updated, for printing."""
        steps = self.plan.steps
        first, last = (steps[0], steps[-1]) if steps else (0, 0)
        reached = self.method.reached_at(self)
        return Timetable(self.method.info.name, len(steps), first, last, reached, self.total_steps, self.plan.every)

    def scored(
        self,
        layer: PrunableLayer,
        score: PerLayer,
        among: Tensor | None = None,
        without: Tensor | None = None,
        extras: Sequence[Extra] = (),
    ) -> Callable[[], Tensor]:
        """The score that selection compares: +inf where reserved, -inf outside `among` and inside `without`.

        Args:
            layer: The layer.
            score: The method's score, which is not written to: it may be the weight or its gradient itself.
            among: Entries that come first.
            without: Entries that come last.
            extras: Extras that adjust the score.

        Returns:
            A function that computes the score, so that selection holds that of one layer at a time.
        """

        def compute() -> Tensor:
            values = score(layer)
            for extra in extras:
                values = extra.score(layer, values)
            if layer.reserved is not None:
                values = torch.where(layer.reserved, torch.inf, values)
            if among is not None:
                values = torch.where(among, values, -torch.inf)
            return values if without is None else torch.where(without, -torch.inf, values)

        return compute

    def keep(
        self,
        layer: PrunableLayer,
        score: PerLayer,
        count: int,
        among: Tensor | None = None,
        without: Tensor | None = None,
    ) -> Tensor:
        """Mask of the `count` best of a layer by score; those in `among` come first, those in `without` last.

        Extras adjust scores when survivors are chosen, not when weights are grown.

        Args:
            layer: The layer.
            score: The method's score.
            count: How many entries the mask has.
            among: Entries that are chosen first.
            without: Entries that are chosen last: the active ones, when growing.
        """
        extras = self.extras if without is None else ()
        scores = self.scored(layer, score, among, without, extras)
        return keep_largest(scores, count, layer.shards, layer.cut)

    def counts(self, score: PerLayer, budget: int) -> list[int]:
        """How many weights stay in each layer.

        "global" compares the method's score over all layers and "lamp" the LAMP score of the active weights, active
        ones first in both; the other distributions follow from the shapes.

        Args:
            score: The method's score.
            budget: What all layers keep together, in weights (or MACs).
        """
        return self._counts(score, budget)[0]

    def keep_best(self, score: PerLayer, budget: int) -> float | None:
        """Set the masks to the best weights by score, among all weights.

        Args:
            score: The method's score.
            budget: What all layers keep together, in weights (or MACs).

        Returns:
            The largest score that is not kept, if the masks are one selection over all layers and it was met on the
            way.
        """
        for layer in self.layers:
            layer.mask.fill_(True)  # a latent that was out may return
        counts, cut = self._counts(score, budget, every_step=True)
        if cut is not None and (self.extras or counts != cut.counts):  # extras adjust what a layer keeps
            cut = None
        for i, (layer, count) in enumerate(zip(self.layers, counts)):
            chosen = None if cut is None else cut.chosen[i]
            if chosen is None or not layer.keep_only(chosen):
                layer.mask.copy_(self.keep(layer, score, count))
        return None if cut is None else cut.below

    def _counts(self, score: PerLayer, budget: int, every_step: bool = False) -> tuple[list[int], Cut | None]:
        """How many weights stay in each layer, and the selection over all layers that says so, if there is one."""
        sizes = [layer.numel for layer in self.layers]
        if self.method.distribution == "lamp":
            score = _lamp_score
        elif self.method.distribution != "global":
            shapes = [layer.shape for layer in self.layers]
            return budgets.layer_counts(shapes, budget, self.method.distribution), None
        costs, macs = [layer.cost for layer in self.layers], self.method.budget == "macs"
        active = [layer.kept() for layer in self.layers]
        reachable = min(budget, sum(n * cost for n, cost in zip(active, costs)))
        cut = self._select(score, active, reachable, every_step)
        for layer in self.layers:
            layer.cut = cut.value * layer.cost if macs else cut.value
        counts = cut.counts
        if reachable < budget:  # fewer weights are active than may stay: inactive ones share the rest
            free = [size - count for size, count in zip(sizes, counts)]
            share = (budget - reachable) / sum(n * cost for n, cost in zip(free, costs))
            added = budgets.largest_remainder([n * share for n in free], round(sum(free) * share), free)
            counts = [count + more for count, more in zip(counts, added)]
        counts = budgets.at_least_one(counts)
        while macs and sum(n * cost for n, cost in zip(counts, costs)) > budget:  # `at_least_one` has overspent
            counts[max(range(len(counts)), key=lambda i: (counts[i], -i))] -= 1
        return counts, cut if self.method.distribution == "global" else None

    def _select(self, score: PerLayer, active: Sequence[int], budget: int, every_step: bool) -> Cut:
        """The best active weights over all layers, by score (per MAC, with a budget of MACs)."""
        compared = (lambda layer: score(layer) / layer.cost) if self.method.budget == "macs" else score
        among = [layer.mask if n < layer.numel else None for layer, n in zip(self.layers, active)]
        near = self.last_cut if every_step else None
        cut = select(
            [self.scored(layer, compared, mask) for layer, mask in zip(self.layers, among)],
            budget,
            costs=[layer.cost for layer in self.layers],
            shards=[layer.shards for layer in self.layers],
            dtype=torch.float64 if any(layer.weight.dtype == torch.float64 for layer in self.layers) else torch.float32,
            near=near,
            collect=every_step,
        )
        self.last_cut = cut.value if every_step and math.isfinite(cut.value) else None
        return cut

    def run_update(self) -> None:
        """Let the method set its masks for `step`."""
        with self.own_precision():
            self._reserve()
            self.method.run_update(self)
        self._forget()

    def own_precision(self) -> torch.autocast:
        """Disables autocast: scores and decompositions need the precision of the weights."""
        return torch.autocast(self.layers[0].weight.device.type, enabled=False)

    def _forget(self) -> None:
        for layer in self.layers:
            layer.temp.clear()
            layer.cut = None

    def _reserve(self) -> None:
        for layer in self.layers:
            layer.seed, layer.step, layer.reserved = self.seed, self.step, None
        for extra in self.extras:
            for layer, mask in extra.reserve(self).items():
                layer.reserved = mask if layer.reserved is None else layer.reserved | mask

    def start(self) -> None:
        """Compute the final budget and the plan, and set the masks at attach."""
        self.budget = self.total
        self.final = self.method.final_budget(self)
        run = replace(self.method.run(self.total_steps), total=self.total, final=self.final)
        self.plan = PlannedUpdates(self.method.plan, replace(run, steps=self.method.plan.steps(run)))
        with self.own_precision():
            self._reserve()
            self.method.run_start(self)
        self._forget()

    def at_target(self) -> bool:
        """Whether the masks keep exactly the final budget; of MACs, at most that, by the selection for it."""
        spent = self.spent()
        return spent == self.final if self.method.budget == "weights" else self.budget == self.final >= spent

    @torch.no_grad()
    def project(self) -> None:
        """Cut the smallest weights at once, down to the final budget."""
        self.method.before_projection(self)

        def magnitude(layer: PrunableLayer) -> Tensor:
            return layer.weight.abs()

        for layer, count in zip(self.layers, self.counts(magnitude, self.final)):
            layer.mask.copy_(self.keep(layer, magnitude, count, among=layer.mask))
        self.budget = self.final


def _lamp_score(layer: PrunableLayer) -> Tensor:
    """LAMP scores of a layer's active weights (of the latents of a latent method), over all ranks that share it."""
    active = torch.where(layer.mask, layer.value, 0.0)
    return layer.part(budgets.lamp_scores(layer.whole(active)))
