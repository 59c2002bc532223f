"""GraSP (Wang et al. 2020): gradient signal preservation at initialisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankprune.core.method import Group, PrunableLayer, Score, register
from rankprune.core.plan import AtOnce, Plan
from rankprune.core.schedules import check_count
from rankprune.methods.shared.probe import average_over_ranks, batches, gradients, probing, refuse_shards


@register(
    "grasp", paper="Wang et al. 2020, arXiv:2002.07376", family="at initialisation", moves=False,
    needs=("data", "loss"),
)  # fmt: skip
@dataclass(kw_only=True)
class GraSP(Score):
    """Cut once, before training, the weights whose removal leaves the gradient's norm largest.

    To first order, removing w changes ‖g‖² by -2 w · (H g), H the Hessian of the loss: the largest -w · (H g) go first.
    H g is the gradient of gᵀ∇L with g held fixed, so it costs one more pass over the first `batches` of the data, with
    a double backward. Logits are divided by `temperature`, which keeps an untrained network's softmax soft. As in the
    authors' code each batch is scored in two halves, each with BatchNorm statistics of its own.

    Args:
        batches: How many batches of the data the scores are measured on.
        temperature: T, by which logits are divided.
        parts: Parts that each batch is scored in.
    """

    plan: Plan = AtOnce()
    batches: int = 1
    temperature: float = 200.0
    parts: int = 2  # of each batch

    def __post_init__(self) -> None:
        check_count(self.batches, "batches", "batches")
        check_count(self.parts, "parts", "parts")
        if not self.temperature > 0.0:
            raise ValueError(f"temperature={self.temperature!r} cannot divide the logits: it must be positive")

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.weight * layer.temp["hessian_grad"]

    def start(self, group: Group) -> None:
        refuse_shards(group)
        super().start(group)

    def update(self, group: Group) -> None:
        first = [torch.zeros_like(layer.weight) for layer in group.layers]
        second = [torch.zeros_like(layer.weight) for layer in group.layers]
        with probing(group, training=True) as model:
            parts = [part for batch in batches(group, self.batches) for part in _split(batch, self.parts)]

            def grads(inputs: Tensor, targets: Tensor, create_graph: bool = False) -> tuple[Tensor, ...]:
                assert group.loss_fn is not None
                return gradients(group.loss_fn(model(inputs) / self.temperature, targets), group, create_graph)

            for inputs, targets in parts:
                torch._foreach_add_(first, grads(inputs, targets))
            average_over_ranks(group, first)
            for inputs, targets in parts:
                with_graph = grads(inputs, targets, create_graph=True)
                flow = torch.stack([(g * h).sum() for g, h in zip(first, with_graph)]).sum()
                torch._foreach_add_(second, gradients(flow, group))
        average_over_ranks(group, second)
        for layer, product in zip(group.layers, second):
            layer.temp["hessian_grad"] = product
        super().update(group)


def _split(batch: tuple[Any, Any], parts: int) -> list[tuple[Any, Any]]:
    """Equal parts of a batch of tensors, as many as it has samples for; whole where it is made of something else."""
    inputs, targets = batch
    if not (isinstance(inputs, Tensor) and isinstance(targets, Tensor)) or len(inputs) != len(targets):
        return [batch]
    return list(zip(inputs.tensor_split(min(parts, len(inputs))), targets.tensor_split(min(parts, len(inputs)))))
