"""The rank gradient in latent methods, which have no growth step it could steer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rankprune import rank
from rankprune.core.method import Extra, Latent, Method, PrunableLayer
from rankprune.core.schedules import check_count
from rankprune.core.shards import local


@dataclass
class RankSteer(Extra):
    """Every `every` steps, add the rank gradient to the gradient of cut latents, with κ times its root mean square.

    At a cut position the rank gradient is 2 Trun_k(W̄)/‖W‖. Layers are left alone until their sparsity is `above`.
    """

    name: ClassVar[str] = "rank_steer"
    kappa: float = 0.3
    delta: float = 0.2
    every: int = 20
    above: float = 0.9

    def __post_init__(self) -> None:
        check_count(self.every, "every", "steps")

    def check(self, method: Method) -> None:
        if not isinstance(method, Latent):
            raise ValueError(f"rank_steer moves latents and {method.info.name} has none: use one such as feather")
        if not method.trains_cut:  # its push is a multiple of their gradient
            raise ValueError(f"rank_steer moves cut latents, which {method.info.name} lets rest: use feather, say")

    def before_step(self, layer: PrunableLayer) -> None:
        if layer.parameter.grad is None or (layer.step + 1) % self.every or 1 - layer.kept() / layer.numel < self.above:
            return
        grad, cut = local(layer.parameter.grad), ~layer.mask
        whole = layer.whole(torch.where(layer.mask, layer.state["latent"], 0.0))
        push = layer.like(rank.rank_grad(layer.matrix(whole), self.delta))
        push = layer.part(push)[cut]
        own = grad[cut]
        scale = self.kappa * _root_mean_square(layer, own) / _root_mean_square(layer, push).clamp_min(1e-30)
        grad[cut] = own + scale * push


def _root_mean_square(layer: PrunableLayer, values: Tensor) -> Tensor:
    """Over all ranks that share the layer."""
    if not layer.shards:
        return values.square().mean().sqrt()
    total, count = layer.shards.sum(torch.stack([values.square().sum(), values.new_tensor(values.numel())]))
    return (total / count).sqrt()
