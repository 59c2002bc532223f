"""ST-3, the soft threshold with straight-through gradients (Vanderschueren & De Vleeschouwer 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankprune.core.method import Site, register
from rankprune.core.schedules import Step
from rankprune.methods.shared.threshold import Thresholded


@register(
    "st3", paper="Vanderschueren & De Vleeschouwer 2023, arXiv:2212.01076", family="latent", needs=("grad",),
    state="a latent a weight, one threshold",
)  # fmt: skip
@dataclass
class ST3(Thresholded):
    """Show the network the soft-thresholded latent, each filter scaled up for what it lost; train all latents.

    A filter's scale is 1.01 / (r + 0.01), r the share of its absolute sum that is above the threshold. `sigma` ranks by
    |w| sqrt(sum of the weight's dimensions), which evens out the densities of layers and halves the FLOPs.
    """

    prune_start: Step = field(default=0.05, kw_only=True)
    rescale: bool = field(default=True, kw_only=True)
    sigma: bool = field(default=False, kw_only=True)

    def scale(self, site: Site) -> float:
        return math.sqrt(sum(site.shape)) if self.sigma else 1.0

    def score(self, site: Site) -> Tensor:
        return site.state["latent"].abs() * self.scale(site)

    def latent_at(self, site: Site, score: Tensor) -> Tensor:
        return super().latent_at(site, score) / self.scale(site)

    def effective(self, site: Site) -> Tensor:
        shown = super().effective(site)
        if not self.rescale:
            return shown
        size = site.state["latent"].abs()
        kept, whole = (filter_sums(site, values) for values in (size * site.mask, size))
        scale = 1.01 / (kept / whole.clamp_min(torch.finfo(size.dtype).tiny) + 0.01)
        return torch.where(site.mask, shown * scale, 0.0)  # a NaN in a filter's sums stays inside the mask


def filter_sums(site: Site, values: Tensor) -> Tensor:
    """Sums over each filter: an output channel, the second dimension where the weight is transposed."""
    axis = 1 if site.transposed else 0
    sums = values.sum(dim=[d for d in range(values.dim()) if d != axis], keepdim=True)
    return site.shards.sum(sums) if site.shards and axis else sums
