"""RigL (Evci et al. 2020): constant sparsity, a topology that follows the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rankprune.core.keywords import PeriodicKeywords
from rankprune.core.method import DropGrow, PrunableLayer, register
from rankprune.core.plan import Periodic, Plan
from rankprune.methods.shared.itop import itop_settings


@register("rigl", paper="Evci et al. 2020, arXiv:1911.11134", family="drop and grow", needs=("grad",))
@dataclass(kw_only=True)
class RigL(DropGrow, PeriodicKeywords):
    """Start sparse at random; again and again drop the smallest weights and grow where the gradient is largest."""

    distribution: str = "erk"
    plan: Plan = Periodic(update_end=0.75)

    def replaces_optimizer_step(self) -> bool:
        return True

    def grow_score(self, layer: PrunableLayer) -> Tensor:
        return layer.grad.abs()

    @classmethod
    def itop(cls, total_steps: int, **changes: Any) -> RigL:
        """RigL-ITOP: an update in 4,000 steps, or 24 in a shorter training, each of up to half of every layer.

        Other settings may be given as `changes`. Liu et al. 2021 also train with larger batches and for longer, since
        both let more weights be explored reliably; `Sparsifier.explored` is their rate R_s.

        Args:
            total_steps: Optimizer steps of the training.
            changes: Other settings.
        """
        return cls(**{**itop_settings(4_000, total_steps), **changes})
