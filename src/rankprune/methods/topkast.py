"""Top-KAST, always sparse training (Jayakumar et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rankprune.core.budget import kept
from rankprune.core.cost import BackwardSetGradient, TrainingCost
from rankprune.core.keywords import EveryStepKeywords
from rankprune.core.method import Group, Latent, PrunableLayer, register


@register(
    "topkast", paper="Jayakumar et al. 2020, arXiv:2106.03517", family="latent", needs=("grad",),
)  # fmt: skip
@dataclass(kw_only=True)
class TopKAST(Latent, EveryStepKeywords):
    """The forward pass uses each layer's largest weights A; gradients train the wider set B of the next largest too.

    Latents outside B rest where they are, momentum included. A penalty on the squares pulls with `penalty` on A and
    with penalty / density on B without A, so that what explores must earn its place. B has twice the density of A
    unless `backward_sparsity` says otherwise (0: all weights are trained).

    Args:
        backward_sparsity: The sparsity of the set B that is trained; None: B has twice the density of the mask.
        penalty: The strength of the penalty on A; on B without A it is divided by the density.
        norm: 2: the penalty is w²/2; 1: it is |w|.
    """

    cost: ClassVar[TrainingCost | None] = BackwardSetGradient()
    distribution: str = "erk"
    backward_sparsity: float | None = None
    penalty: float = 1e-4
    norm: Literal[1, 2] = 2  # of the penalty: |w|, or w²/2

    def __post_init__(self) -> None:
        if self.backward_sparsity is not None and not 0.0 <= self.backward_sparsity < 1.0:
            raise ValueError(f"backward_sparsity={self.backward_sparsity!r} is not in [0, 1): 0 trains all weights")

    def _backward_count(self, group: Group) -> int:
        if self.backward_sparsity is None:
            return min(2 * group.final, group.total)
        count = kept(group.total, self.backward_sparsity)
        if count < group.final:
            raise ValueError(f"backward_sparsity={self.backward_sparsity} is above sparsity={self.sparsity}: lower it")
        return count

    def start(self, group: Group) -> None:
        self.make_latents(group)
        self.update(group)  # also where the plan begins dense: it sets B

    def update(self, group: Group) -> None:
        count = self._backward_count(group)
        for layer in group.layers:
            layer.mask.fill_(True)
        wide = group.counts(self.score, count) if count < group.total else [layer.numel for layer in group.layers]
        super().update(group)
        for layer, size in zip(group.layers, wide):
            if size < layer.numel:
                layer.state["trained"] = group.keep(layer, self.score, size).logical_or_(layer.mask)
            else:  # all of the layer is in B, whatever was before
                layer.state.pop("trained", None)

    def latent_grad(self, layer: PrunableLayer, grad: Tensor) -> Tensor:
        trained = layer.state.get("trained")
        return grad if trained is None else torch.where(trained, grad, 0.0)

    def after_step(self, layer: PrunableLayer, group: Group) -> None:
        before, trained = layer.state["latent"], layer.state.get("trained")
        if self.penalty:
            slope = before if self.norm == 2 else before.sign()
            strength = torch.where(layer.mask, 1.0, group.total / group.final).to(slope)
            layer.weight.sub_(slope * strength, alpha=layer.lr * self.penalty)
        if trained is not None:
            layer.weight.copy_(torch.where(trained, layer.weight, before))
            layer.clear_state(trained)
