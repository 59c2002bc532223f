"""SAFE (Lee et al. 2025): ADMM for the sparsity constraint, with steps that look for flat minima (SAM)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from rankprune.core.cost import TrainingCost
from rankprune.core.keywords import of_plan, plan_keywords
from rankprune.core.method import Group, Latent, PrunableLayer, register
from rankprune.core.plan import Plan, Run
from rankprune.core.schedules import Step, as_step, check_count, cosine
from rankprune.methods.shared.sam import evaluate_twice

AUTHORS_STEPS = 200 * 391  # 200 epochs of CIFAR in batches of 128
LARGEST_LAM = 0.1  # of a λ that is derived for a short training


@dataclass(frozen=True, kw_only=True)
class ProjectAt(Plan):
    """An update at every step up to `project_at`, where the dense weights are cut.

    Args:
        project_at: The step after which the largest weights become the mask.
    """

    project_at: Step = 0.9

    def steps(self, run: Run) -> Sequence[int]:
        last = min(max(as_step(self.project_at, run.total_steps, "project_at"), 1), run.total_steps)
        return range(1, last + 1)

    def budget(self, done: int, run: Run) -> int:
        return run.final if done == len(run.steps) else run.total


@plan_keywords(kw_only=True)
class ProjectAtKeywords:
    """The keywords of `ProjectAt`."""

    project_at: Step = of_plan()


@register(
    "safe", paper="Lee et al. 2025, arXiv:2506.06866", family="latent", exact="end", needs=("grad",),
)  # fmt: skip
@dataclass(kw_only=True)
class SAFE(Latent, ProjectAtKeywords):
    """Train dense weights x for flatness while ADMM pulls them to a sparse z, and cut when they have come close.

    Each step follows ∇f(x + ε) + λ (x - z + u), with ε = ρ g/‖g‖ over all of the group's weights. After every
    `dual_every` steps z becomes x + u with all but the largest entries zero, and u grows by x - z. λ rises along a
    cosine from 0 to `lam` (None: the authors' 1e-3 in 78,200 steps, and so much more in fewer). At `project_at` the
    largest x stay; their mask stands from there on, and they train without ε and λ.

    `ascent="previous"` takes g from the step before: between steps the weights hold x + ε, the loop is untouched and
    a step costs what it did. `ascent="closure"` is SAM itself: `optimizer.step(closure)` evaluates the closure at x
    for g and again at x + ε.

    Args:
        rho: ρ, the radius of the ascent step of SAM.
        lam: λ, the strength of the pull towards z at the end; None: 1e-3 in 78,200 steps, more in fewer.
        dual_every: Steps between two updates of z and u; None: 32, or fewer in a short training.
        ascent: "previous": ε follows the gradient of the step before; "closure": SAM itself, at twice the cost.
    """

    cost: ClassVar[TrainingCost | None] = TrainingCost(step="1 until the cut, then f")
    trains_cut: ClassVar[bool] = False
    rho: float = 0.1
    lam: float | None = None
    dual_every: int | None = None
    plan: Plan = ProjectAt()
    ascent: Literal["previous", "closure"] = "previous"

    def __post_init__(self) -> None:
        for name in ("rho", "lam"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and 0.0 <= value < math.inf):
                raise ValueError(f"{name}={value!r} is not a number of 0 or more")
        if self.dual_every is not None:
            check_count(self.dual_every, "dual_every", "steps")

    # -- the timetable ----------------------------------------------------------------------------------------------

    def period(self, total_steps: int) -> int:
        """Steps between two updates of z and u: the authors' 32 where that makes 50, else what makes about 100.

        Args:
            total_steps: Optimizer steps of the training.
        """
        if self.dual_every is not None:
            return self.dual_every
        last = self.updates(total_steps)[-1]
        return 32 if last >= 50 * 32 else min(max(last // 100, 1), 32)

    def strength(self, step: int, total_steps: int) -> float:
        """λ of an optimizer step (from 1).

        Args:
            step: The optimizer step, from 1.
            total_steps: Optimizer steps of the training.
        """
        lam = self.lam
        if lam is None:
            lam = min(1e-3 * max(AUTHORS_STEPS / total_steps, 1.0), LARGEST_LAM)
        return cosine(0.0, lam, self.updates(total_steps)[-1])(step - 1)

    # -- a step -----------------------------------------------------------------------------------------------------

    def start(self, group: Group) -> None:
        super().start(group)
        for layer in group.layers:
            layer.state["u"] = torch.zeros_like(layer.weight)
        self.split(group)

    def before_every(self) -> int:
        return 1

    def before_step(self, layers: Sequence[PrunableLayer], group: Group, step: int) -> None:
        """Keep the gradient of the loss for the next ε, and add the pull towards z - u to it."""
        lam = self.strength(step, group.total_steps)
        for layer in layers:
            if layer.parameter.grad is None or "z" not in layer.state:
                continue
            if self.ascent == "previous" and self.rho:
                layer.temp["grad"] = layer.grad.clone()
            layer.add_gradient((layer.state["latent"] - layer.state["z"] + layer.state["u"]).mul_(lam))

    def update(self, group: Group) -> None:
        if group.step >= group.plan.steps[-1]:
            return self._cut(group)
        due = group.step // self.period(group.total_steps)
        if due > group.state.get("splits", 0):  # also makes up for an update that was skipped for a NaN or Inf
            group.state["splits"] = due
            self.split(group)
        group.budget = group.total
        grads = {layer: layer.temp["grad"] for layer in group.layers if "grad" in layer.temp}
        scale = self.rho / _norm(grads)
        for layer in group.layers:
            layer.state.pop("shift", None)
        for layer, grad in grads.items():
            layer.state["shift"] = grad.mul_(scale)

    def split(self, group: Group) -> None:
        """z ← the nearest point to x + u within the budget; u ← x + u - z.

        Args:
            group: The layers that the method works on.
        """

        def magnitude(layer: PrunableLayer) -> Tensor:
            return (layer.state["latent"] + layer.state["u"]).abs_()

        for layer, count in zip(group.layers, group.counts(magnitude, group.final)):
            target = layer.state["latent"] + layer.state["u"]
            layer.state["z"] = torch.where(group.keep(layer, magnitude, count), target, 0.0)
            if group.step:  # at attach u stays 0
                layer.state["u"] = target - layer.state["z"]

    def _cut(self, group: Group) -> None:
        super().update(group)
        for layer in group.layers:
            for key in ("z", "u", "shift"):
                layer.state.pop(key, None)
            layer.state["latent"] = self.effective(layer)

    def effective(self, layer: PrunableLayer) -> Tensor:
        latent, shift = layer.state["latent"], layer.state.get("shift")
        return torch.where(layer.mask, latent if shift is None else latent + shift, 0.0)

    def latent_grad(self, layer: PrunableLayer, grad: Tensor) -> Tensor:
        return torch.where(layer.mask, grad, 0.0)

    def before_projection(self, group: Group) -> None:
        for layer in group.layers:
            layer.state.pop("shift", None)
            layer.weight.copy_(self.effective(layer))

    # -- SAM by a closure -------------------------------------------------------------------------------------------

    def needs_closure(self, group: Group) -> bool:
        return self.ascent == "closure" and self.rho > 0 and any("z" in layer.state for layer in group.layers)

    def evaluate(self, group: Group, closure: Callable[[], Any]) -> Any:
        if not self.needs_closure(group):
            return closure()
        return evaluate_twice(group, closure, lambda: self._climb(group))

    def _climb(self, group: Group) -> None:
        """From x to x + ε, in the weights themselves."""
        grads = {layer: layer.grad for layer in group.layers if layer.parameter.grad is not None}
        scale = self.rho / _norm(grads)
        for layer, grad in grads.items():
            layer.weight.add_(grad * scale)


def _norm(gradients: dict[PrunableLayer, Tensor]) -> float:
    """The norm of all gradients together; never 0."""
    squares = [(layer, grad.square().sum(dtype=torch.float64)) for layer, grad in gradients.items()]
    return math.sqrt(sum(float(layer.shards.sum(square)) for layer, square in squares)) + 1e-12
