"""SNIP (Lee et al. 2019): connection sensitivity at initialisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rankprune.core.method import Group, PrunableLayer, Score, register
from rankprune.core.plan import AtOnce, Plan
from rankprune.core.schedules import check_count
from rankprune.methods.shared.probe import average_over_ranks, batches, gradients, probing, refuse_shards


@register(
    "snip", paper="Lee et al. 2019, arXiv:1810.02340", family="at initialisation", moves=False, needs=("data", "loss"),
)  # fmt: skip
@dataclass(kw_only=True)
class SNIP(Score):
    """Cut once, before training, the weights whose removal would change the loss least: small |w · ∂L/∂w|.

    A multiplier c = 1 on each weight has ∂L/∂c = w · ∂L/∂w, so one backward pass scores all connections and one global
    threshold shares the budget out over the layers. The gradient is the mean over the first `batches` of the data.

    Args:
        batches: How many batches of the data the gradient is averaged over.
    """

    plan: Plan = AtOnce()
    batches: int = 1

    def __post_init__(self) -> None:
        check_count(self.batches, "batches", "batches")

    def score(self, layer: PrunableLayer) -> Tensor:
        return (layer.weight * layer.temp["grad"]).abs_()

    def start(self, group: Group) -> None:
        refuse_shards(group)
        super().start(group)

    def update(self, group: Group) -> None:
        assert group.loss_fn is not None
        sums = [torch.zeros_like(layer.weight) for layer in group.layers]
        with probing(group, training=True) as model:
            for inputs, targets in batches(group, self.batches):
                torch._foreach_add_(sums, gradients(group.loss_fn(model(inputs), targets), group))
        average_over_ranks(group, sums)
        for layer, grad in zip(group.layers, sums):
            layer.temp["grad"] = grad
        super().update(group)
