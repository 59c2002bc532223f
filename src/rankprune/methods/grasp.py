"""GraSP (Wang et al. 2020): gradient signal preservation at initialisation."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..method import Group, Score, Site, register
from ._probe import agree, batches, check_batches, gradients, probing, refuse_shards


@register(
    "grasp", paper="Wang et al. 2020, arXiv:2002.07376", family="at initialisation", moves=False,
    needs=("data", "loss"), defaults={"cifar": {"batches": 1}, "imagenet": {"batches": 1}},
)  # fmt: skip
@dataclass
class GraSP(Score):
    """Cut once, before training, the weights whose removal leaves the gradient's norm largest.

    To first order, removing w changes ‖g‖² by -2 w · (H g), H the Hessian of the loss: the largest -w · (H g) go first.
    H g is the gradient of gᵀ∇L with g held fixed, so it costs one more pass over the first `batches` of the data, with
    a double backward. Logits are divided by `temperature`, which keeps an untrained network's softmax soft.
    """

    batches: int = field(default=1, kw_only=True)
    temperature: float = field(default=200.0, kw_only=True)

    def __post_init__(self) -> None:
        check_batches("grasp", self.batches)
        if not self.temperature > 0.0:
            raise ValueError(f"temperature={self.temperature!r} cannot divide the logits: it must be positive")

    def score(self, site: Site) -> Tensor:
        assert site.scratch is not None
        return site.weight * site.scratch

    def start(self, group: Group) -> None:
        refuse_shards(group)
        super().start(group)

    def update(self, group: Group) -> None:
        first = [torch.zeros_like(site.weight) for site in group.sites]
        second = [torch.zeros_like(site.weight) for site in group.sites]
        with probing(group, training=True) as model:
            held = list(batches(group, self.batches))

            def grads(inputs: Tensor, targets: Tensor, create_graph: bool = False) -> tuple[Tensor, ...]:
                assert group.loss_fn is not None
                return gradients(group.loss_fn(model(inputs) / self.temperature, targets), group, create_graph)

            for inputs, targets in held:
                torch._foreach_add_(first, grads(inputs, targets))
            agree(group, first)
            for inputs, targets in held:
                with_graph = grads(inputs, targets, create_graph=True)
                flow = torch.stack([(g * h).sum() for g, h in zip(first, with_graph)]).sum()
                torch._foreach_add_(second, gradients(flow, group))
        agree(group, second)
        for site, product in zip(group.sites, second):
            site.scratch = product
        super().update(group)
