"""ST-3, the soft threshold with straight-through gradients (Vanderschueren & De Vleeschouwer 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rankprune.core.keywords import RampKeywords
from rankprune.core.method import PrunableLayer, register
from rankprune.core.plan import Ramp
from rankprune.methods.shared.threshold import Thresholded


@register(
    "st3", paper="Vanderschueren & De Vleeschouwer 2023, arXiv:2212.01076", family="latent", needs=("grad",),
)  # fmt: skip
@dataclass(kw_only=True)
class ST3(Thresholded, RampKeywords):
    """Show the network the soft-thresholded latent, each filter scaled up for what it lost; train all latents.

    A filter's scale is 1.01 / (r + 0.01), r the share of its absolute sum that is above the threshold. `sigma` ranks by
    |w| sqrt(sum of the weight's dimensions), which evens out the densities of layers and halves the FLOPs.

    Args:
        rescale: Whether each filter is scaled up for what it lost.
        sigma: Whether weights are ranked by |w| sqrt(sum of the weight's dimensions).
    """

    plan: Ramp = Ramp(prune_start=0.05)
    rescale: bool = True
    sigma: bool = False

    def scale(self, layer: PrunableLayer) -> float:
        """What the latents of a layer are multiplied by where layers are compared.

        Args:
            layer: The layer.
        """
        return math.sqrt(sum(layer.shape)) if self.sigma else 1.0

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.state["latent"].abs() * self.scale(layer)

    def latent_at(self, layer: PrunableLayer, score: Tensor) -> Tensor:
        return super().latent_at(layer, score) / self.scale(layer)

    def effective(self, layer: PrunableLayer) -> Tensor:
        shown = super().effective(layer)
        if not self.rescale:
            return shown
        size = layer.state["latent"].abs()
        kept, whole = (_filter_sums(layer, values) for values in (size * layer.mask, size))
        scale = 1.01 / (kept / whole.clamp_min(torch.finfo(size.dtype).tiny) + 0.01)
        return torch.where(layer.mask, shown * scale, 0.0)  # a NaN in a filter's sums stays inside the mask


def _filter_sums(layer: PrunableLayer, values: Tensor) -> Tensor:
    """Sums over each filter: an output channel, the second dimension where the weight is transposed."""
    axis = 1 if layer.transposed else 0
    sums = values.sum(dim=[d for d in range(values.dim()) if d != axis], keepdim=True)
    return layer.shards.sum(sums) if axis else sums  # ranks hold whole rows
