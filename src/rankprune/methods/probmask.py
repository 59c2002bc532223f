"""ProbMask (Zhou et al. 2021): keep-probabilities under one global budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rankprune.core.keywords import RampKeywords, of_plan, plan_keywords
from rankprune.core.method import Group, Latent, PrunableLayer, register
from rankprune.core.plan import Ramp, Run
from rankprune.core.schedules import Step, as_step, cosine, cubic

EPS = 1e-20  # inside logarithms, as the authors have it


@dataclass(frozen=True, kw_only=True)
class SoftRamp(Ramp):
    """An update at every step up to `fix_at`, where the masks become hard; the budget of the soft ones is a ramp.

    Args:
        prune_start: The step at which the sum of the probabilities begins to fall.
        prune_end: The step at which it is the final budget.
        fix_at: The step at which the likeliest weights become the mask.
    """

    prune_start: Step = 0.16
    prune_end: Step = 0.6
    fix_at: Step = 0.9

    def steps(self, run: Run) -> Sequence[int]:
        self.ramp(run.total_steps)
        return range(1, max(as_step(self.fix_at, run.total_steps, "fix_at"), 1) + 1)

    def budget(self, done: int, run: Run) -> int:
        return run.final if done == len(run.steps) else run.total

    def reached(self, run: Run) -> int:
        return run.steps[-1]


@plan_keywords(kw_only=True)
class SoftRampKeywords(RampKeywords):
    """The keywords of `SoftRamp`."""

    fix_at: Step = of_plan()


@register(
    "probmask", paper="Zhou et al. 2021, arXiv:2105.00203", family="latent", exact="end", needs=("grad",),
)  # fmt: skip
@dataclass(kw_only=True)
class ProbMask(Latent, SoftRampKeywords):
    """Learn for each weight the probability that it stays, all under one budget, through masks that are drawn softly.

    A soft mask is σ((logit s + logistic noise) · T), T rising from 1 to about 30 at `fix_at`. Adam trains s; each step
    ends with the projection of s on {0 <= s <= 1, Σs <= budget}, a budget that falls along a cubic. The authors end
    with the best of ten drawn masks, whose count is random; here, from `fix_at` on, exactly as many as asked for stay,
    the likeliest.

    Args:
        score_lr: The learning rate of the probabilities; None: 6e-3 in 60,000 steps, more in fewer.
    """

    trains_cut: ClassVar[bool] = False
    score_lr: float | None = None
    plan: SoftRamp = SoftRamp()

    def start(self, group: Group) -> None:
        super().start(group)
        for layer in group.layers:
            layer.state |= {key: torch.ones_like(layer.weight) for key in ("probability", "soft")}
            layer.state |= {key: torch.zeros_like(layer.weight) for key in ("slope", "mean", "square")}

    def effective(self, layer: PrunableLayer) -> Tensor:
        return torch.where(layer.mask, layer.state["latent"] * layer.state["soft"], 0.0)

    def latent_grad(self, layer: PrunableLayer, grad: Tensor) -> Tensor:
        return torch.where(layer.mask, grad * layer.state["soft"], 0.0)

    def note_grad(self, layer: PrunableLayer) -> None:
        """∂L/∂s without its factor T: w ∂L/∂(wm) m (1 - m) (1/s + 1/(1 - s)), where `layer.grad` is m ∂L/∂(wm)."""
        if "slope" in layer.state:
            probability = layer.state["probability"]
            odds = 1 / (probability + EPS) + 1 / (1 - probability + EPS)
            layer.state["slope"] = layer.grad * layer.state["latent"] * ((1 - layer.state["soft"]) * odds)

    def update(self, group: Group) -> None:
        if group.step >= group.plan.reached:
            return self._fix(group)
        temperature = 1 / (0.97 * (1 - group.step / group.plan.reached) + 0.03)
        for layer in group.layers:
            self.train(layer, group)
        project(group.layers, self.expected(group))
        for layer in group.layers:
            probability = layer.state["probability"]
            logits = logit(probability) + logit(layer.random("soft").to(probability))
            layer.state["soft"] = torch.sigmoid(logits * temperature)
            layer.state["temperature"] = temperature

    def train(self, layer: PrunableLayer, group: Group) -> None:
        """One step of Adam on the probabilities.

        Args:
            layer: The layer.
            group: The layers that the method works on.
        """
        slope = layer.state["slope"].mul_(layer.state.get("temperature", 1.0))
        mean = layer.state["mean"].lerp_(slope, 0.1) / (1 - 0.9**group.step)
        square = layer.state["square"].lerp_(slope.square(), 0.001) / (1 - 0.999**group.step)
        rate = cosine(self.first_rate(group), 0.0, group.plan.reached)(group.step)
        layer.state["probability"].addcdiv_(mean, square.sqrt_().add_(1e-8), value=-rate)
        slope.zero_()

    def first_rate(self, group: Group) -> float:
        """The authors' 6e-3 in 60,000 steps; larger in fewer steps, so that probabilities can still reach 0 and 1.

        Args:
            group: The layers that the method works on.
        """
        return min(6e-3 * max(6e4 / group.total_steps, 1.0), 0.3) if self.score_lr is None else self.score_lr

    def expected(self, group: Group) -> float:
        """The budget of this step: all until `prune_start`, the final one from `prune_end` on.

        Args:
            group: The layers that the method works on.
        """
        first, last = self.plan.ramp(group.total_steps)
        return cubic(group.total, group.final, last - first)(group.step - first)

    def score(self, layer: PrunableLayer) -> Tensor:
        """By probability; where that is 1 or 0, by size."""
        probability, size = layer.state["probability"], layer.state["latent"].abs()
        return torch.where(probability >= 1, 1 + size, torch.where(probability <= 0, -1 / (1 + size), probability))

    def _fix(self, group: Group) -> None:
        super().update(group)
        for layer in group.layers:
            layer.state["soft"] = torch.ones_like(layer.weight)
            for key in ("slope", "mean", "square", "temperature"):
                layer.state.pop(key, None)


def logit(x: Tensor) -> Tensor:
    """log(x / (1 - x)), finite at 0 and 1.

    Args:
        x: Probabilities.
    """
    return (x + EPS).log() - (1 - x + EPS).log()


def project(layers: Sequence[PrunableLayer], budget: float) -> None:
    """The nearest point of {0 <= s <= 1, Σ cost · s <= budget}: s - v · cost, clamped, with one v >= 0 for all.

    Args:
        layers: Layers that share the budget; their probabilities are changed in place.
        budget: The most that the probabilities may sum to, in weights (or MACs).
    """

    def total(shift: float) -> float:
        sums = [(s.state["probability"] - shift * s.cost).clamp_(0, 1).sum(dtype=torch.float64) for s in layers]
        return math.fsum(s.cost * float(s.shards.sum(x)) for s, x in zip(layers, sums))

    if total(0.0) > budget:
        low, high = 0.0, 1e-3  # one step changes little: search near 0 first
        while total(high) > budget:
            low, high = high, 2 * high
        while high - low > 1e-9 and budget - total(high) > 1e-3:
            middle = (low + high) / 2
            low, high = (middle, high) if total(middle) > budget else (low, middle)
    else:
        high = 0.0
    for layer in layers:
        layer.state["probability"].sub_(high * layer.cost).clamp_(0, 1)
