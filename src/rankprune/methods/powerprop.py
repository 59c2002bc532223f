"""PowerPropagation (Schwarz et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rankprune.core.cost import DenseGradient, TrainingCost
from rankprune.core.keywords import of_plan, plan_keywords
from rankprune.core.method import PrunableLayer, register
from rankprune.core.plan import EveryStep, Plan, Run
from rankprune.core.schedules import Step, as_step

from .topkast import TopKAST


@dataclass(frozen=True, kw_only=True)
class CutAt(EveryStep):
    """An update at every step, dense before `prune_at` and at the final budget from there on.

    Args:
        update_end: The last step with an update; None: the last of training.
        prune_at: The step of the cut; 0: at attach.
    """

    prune_at: Step = 0

    def budget(self, done: int, run: Run) -> int:
        return run.total if done < self.reached(run) else run.final

    def reached(self, run: Run) -> int:
        return as_step(self.prune_at, run.total_steps, "prune_at")


@plan_keywords(kw_only=True)
class CutAtKeywords:
    """The keywords of `CutAt`."""

    prune_at: Step = of_plan()


@register(
    "powerprop", paper="Schwarz et al. 2021, arXiv:2110.00296", family="latent", needs=("grad",),
)  # fmt: skip
@dataclass(kw_only=True)
class PowerProp(TopKAST, CutAtKeywords):
    """Train φ where the weight is φ|φ|^(α-1): large weights learn faster, small ones stay small and can be cut.

    By default on Top-KAST's sets with a dense backward pass (the authors' best); `backward_sparsity` narrows it.
    `prune_at=0.9` is PowerProp alone: dense training until then, and one cut.

    Args:
        alpha: α, the power; 1 is Top-KAST.
        backward_sparsity: The sparsity of the set B that is trained; 0: all weights are.
        penalty: The strength of the penalty on weights outside the mask.
    """

    cost: ClassVar[TrainingCost | None] = DenseGradient()
    alpha: float = 1.25
    backward_sparsity: float | None = 0.0
    penalty: float = 0.0
    plan: Plan = CutAt()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.alpha >= 1.0:  # below 1 the gradient has a pole at 0
            raise ValueError(f"alpha={self.alpha!r} is below 1: at 1 it is Top-KAST, above 1 PowerProp")

    def to_latent(self, weight: Tensor) -> Tensor:
        return weight.abs().pow_(1 / self.alpha).copysign_(weight)

    def effective(self, layer: PrunableLayer) -> Tensor:
        latent = layer.state["latent"]
        return torch.where(layer.mask, latent.abs().pow_(self.alpha).copysign_(latent), 0.0)

    def latent_grad(self, layer: PrunableLayer, grad: Tensor) -> Tensor:
        """∂L/∂φ = α|φ|^(α-1) ∂L/∂θ, which is 0 at φ = 0: a latent of 0 stays 0."""
        return super().latent_grad(layer, grad * layer.state["latent"].abs().pow_(self.alpha - 1) * self.alpha)
