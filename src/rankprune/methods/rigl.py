"""RigL (Evci et al. 2020): constant sparsity, a topology that follows the gradient."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from ..method import DropGrow, Site, register
from ..schedules import Step


@register("rigl", paper="Evci et al. 2020, arXiv:1911.11134", family="drop and grow", needs=("grad",))
@dataclass
class RigL(DropGrow):
    """Start sparse at random; again and again drop the smallest weights and grow where the gradient is largest."""

    instead: ClassVar[bool] = True
    distribution: str = field(default="erk", kw_only=True)
    update_end: Step | None = field(default=0.75, kw_only=True)

    def grow_score(self, site: Site) -> Tensor:
        return site.grad.abs()
