"""WoodFisher (Singh & Alistarh 2020): optimal brain surgery with a block-wise inverse of the empirical Fisher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rankprune.core.keywords import RoundsKeywords
from rankprune.core.method import Group, PrunableLayer, register
from rankprune.methods.shared.fisher import fisher_gradients, inverse_diagonal, inverse_product
from rankprune.methods.shared.fisher_surgery import FisherSurgery


@register(
    "woodfisher", paper="Singh & Alistarh 2020, arXiv:2004.14340", family="second order", needs=("data", "loss"),
)  # fmt: skip
@dataclass(kw_only=True)
class WoodFisher(FisherSurgery, RoundsKeywords):
    """Cut gradually the weights that cost least under a quadratic model of the loss, and correct the others for it.

    The curvature is the empirical Fisher F = λI + mean g gᵀ of `gradients` gradients over `minibatch` samples each, in
    blocks of `block` consecutive weights of a layer. A weight costs w²/(2 [F⁻¹]_ww), compared over all layers; the cut
    ones move the others by -Σ (w/[F⁻¹]_ww) F⁻¹e_w. `rounds` prunings follow the cubic schedule up to `prune_end`; the
    last lands on the target exactly, where the authors' code stops just short of it.

    Memory of a pruning: itemsize · gradients · n bytes, n the weights whose gradients are held at once: all, if that
    is within `memory` bytes, else parts of them by layer (never less than one layer), at a pass over the data each;
    and 64 MB temporaries. `data` must allow being gone through again, beside the training loop.
    """

    def size(self, layer: PrunableLayer) -> int:
        return self.gradients * layer.numel * layer.weight.element_size()

    def curvature(self, group: Group, masks: Mapping[PrunableLayer, Tensor]) -> list[Tensor]:
        return fisher_gradients(group, masks, self.gradients, self.minibatch)

    def importance(self, layer: PrunableLayer, curvature: Tensor) -> Tensor:
        return inverse_diagonal(curvature, self.damping, self.block)

    def change(self, layer: PrunableLayer, before: Tensor, curvature: Tensor) -> Tensor:
        force = torch.where(before & ~layer.mask, layer.weight / layer.temp["inverse_diagonal"], 0.0).flatten()
        return inverse_product(curvature, force, self.damping, self.block)
