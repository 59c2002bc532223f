"""SparseOpt: undo the skew that BatchNorm gives the gradient of a sparse layer (ICML 2026, arXiv:2605.27541)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rankprune.core.method import Extra, PrunableLayer
from rankprune.core.shards import local


@dataclass
class SparseOpt(Extra):
    """Scale row i of a gradient by sqrt(density of the row / density of the layer) for the step, not for growth.

    Normalisation multiplies the gradient of a neuron by (1 − s_i)^(−1/2), which turns the layer's gradient away as
    rows grow uneven. Only active entries are scaled, so that growth sees the gradient as it is.
    """

    name: ClassVar[str] = "sparseopt"

    def before_step(self, layer: PrunableLayer) -> None:
        if layer.parameter.grad is not None:
            local(layer.parameter.grad).mul_(self.scale(layer))

    def after_step(self, layer: PrunableLayer) -> None:
        if layer.parameter.grad is not None:
            local(layer.parameter.grad).div_(self.scale(layer))

    def scale(self, layer: PrunableLayer) -> Tensor:
        """One number per weight: that of its row where it is active, 1 elsewhere.

        Args:
            layer: The layer.
        """
        rows = layer.matrix(layer.mask)  # (out, in, *kernel)
        density, share = rows.flatten(1).float().mean(1), layer.mask.float().mean()  # tensors: no device sync
        if layer.shards:  # each row is on one rank, unless the weight is transposed; the layer is on several
            share = layer.shards.sum(layer.mask.float().sum()) / layer.numel
            if layer.transposed:
                density = layer.shards.sum(rows.flatten(1).float().sum(1)) * len(rows) / layer.numel
        factor = (density / share.clamp_min(1e-12)).sqrt().view(-1, *[1] * (rows.ndim - 1))
        return torch.where(layer.mask, layer.like(factor), 1.0).to(layer.weight.dtype)
