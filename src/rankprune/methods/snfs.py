"""SNFS, sparse networks from scratch by sparse momentum (Dettmers & Zettlemoyer 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rankprune.core.cost import DenseGradient, TrainingCost
from rankprune.core.form import DenseStateForm, MaskedForm
from rankprune.core.keywords import PeriodicKeywords
from rankprune.core.method import Group, PrunableLayer, register
from rankprune.core.schedules import Value
from rankprune.core.shards import local
from rankprune.methods.shared.redistribute import Redistributing
from rankprune.methods.shared.sparse_learning import SparseLearning


@register(
    "snfs", paper="Dettmers & Zettlemoyer 2019, arXiv:1907.04840", family="drop and grow", needs=("grad",),
)  # fmt: skip
@dataclass(kw_only=True)
class SNFS(Redistributing, SparseLearning, PeriodicKeywords):
    """Cut the smallest of each layer; what is freed goes to layers, and to positions in them, with large momentum.

    Momentum stays dense, so it covers weights outside the mask. The authors round each layer up and correct the drift
    later; here shares become integers that sum to the budget at once, so the count never drifts.
    """

    form: ClassVar[type[MaskedForm]] = DenseStateForm
    cost: ClassVar[TrainingCost | None] = DenseGradient()

    grow: Value = 0.5  # declared here too: Redistributing comes first and inherits 0.3

    def stay(self, group: Group) -> list[int]:
        counts, means = [], [mean_momentum(layer) for layer in group.layers]
        for layer, mean in zip(group.layers, means):
            kept, rate = layer.kept(), self.fraction(group)
            if 1.0 - kept / layer.numel < 0.2 and mean * len(means) > sum(means):
                rate = min(rate, 1.0 - kept / layer.numel)  # it is nearly full and will grow: drop no more than fits
            counts.append(kept - math.ceil(rate * kept))
        return counts

    def shares(self, group: Group, stay: Sequence[int]) -> Sequence[float]:
        return [mean_momentum(layer) for layer in group.layers]

    def grow_score(self, layer: PrunableLayer) -> Tensor:
        return momentum(layer).abs()


def momentum(layer: PrunableLayer) -> Tensor:
    """SGD's momentum, Adam's m / (sqrt(v) + 1e-8), or the gradient where the optimizer keeps neither.

    Args:
        layer: The layer.
    """
    state = layer.optimizer.state.get(layer.parameter, {}) if layer.optimizer else {}
    if isinstance(buffer := state.get("momentum_buffer"), Tensor):
        return local(buffer)
    if "exp_avg" in state and "exp_avg_sq" in state:
        return local(state["exp_avg"]) / (local(state["exp_avg_sq"]).sqrt() + 1e-8)
    return layer.grad


def mean_momentum(layer: PrunableLayer) -> float:
    """Mean |momentum| over the active weights.

    Args:
        layer: The layer.
    """
    total = momentum(layer).abs().mul_(layer.mask).sum()
    return float(layer.shards.sum(total)) / max(layer.kept(), 1)
