"""WoodFisher (Singh & Alistarh 2020): optimal brain surgery with a block-wise inverse of the empirical Fisher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..method import Group, Site, register
from ._fisher import fisher_gradients, inverse_diagonal, inverse_product
from ._surgery import Surgery


@register(
    "woodfisher", paper="Singh & Alistarh 2020, arXiv:2004.14340", family="second order", needs=("data", "loss"),
    defaults={"cifar": {"gradients": 1000, "minibatch": 1},
              "imagenet": {"gradients": 400, "minibatch": 400, "block": 2000, "damping": 1e-5, "prune_end": 0.4}},
)  # fmt: skip
@dataclass
class WoodFisher(Surgery):
    """Cut gradually the weights that cost least under a quadratic model of the loss, and correct the others for it.

    The curvature is the empirical Fisher F = λI + mean g gᵀ of `gradients` gradients over `minibatch` samples each, in
    blocks of `block` consecutive weights of a layer. A weight costs w²/(2 [F⁻¹]_ww), compared over all layers; the cut
    ones move the others by -Σ (w/[F⁻¹]_ww) F⁻¹e_w. `rounds` prunings follow the cubic schedule up to `prune_end`; the
    last lands on the target exactly, where the authors' code stops just short of it.

    Memory of a pruning: itemsize · gradients · n bytes, n the weights whose gradients are held at once: all, if that
    is within `memory` bytes, else parts of them by layer (never less than one layer), at a pass over the data each;
    and 64 MB temporaries. `data` must allow being gone through again, beside the training loop.
    """

    gradients: int = field(default=400, kw_only=True)
    minibatch: int = field(default=1, kw_only=True)
    block: int = field(default=2000, kw_only=True)
    damping: float = field(default=1e-5, kw_only=True)
    memory: int = field(default=2 * 10**9, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gradients", "minibatch", "block", "damping"):
            if not getattr(self, name) > 0:
                raise ValueError(f"woodfisher has {name}={getattr(self, name)!r}: it must be positive")

    def update(self, group: Group) -> None:
        parts = [{site: site.mask.clone() for site in part} for part in self.parts(group.sites)]
        rows: list[Tensor] = []
        for part in parts:
            rows = fisher_gradients(group, part, self.gradients, self.minibatch)
            for site, g in zip(part, rows):
                site.scratch = inverse_diagonal(g, self.damping, self.block).view(site.shape).to(site.weight)
        super().update(group)
        changes = {}
        for part in parts:
            if len(parts) > 1:  # else they are still here
                rows = fisher_gradients(group, part, self.gradients, self.minibatch)
            for (site, before), g in zip(part.items(), rows):
                assert site.scratch is not None
                force = torch.where(before & ~site.mask, site.weight / site.scratch, 0.0).flatten()
                changes[site] = inverse_product(g, force, self.damping, self.block)
        for site, change in changes.items():
            site.weight.sub_(change.view(site.shape).to(site.weight))

    def parts(self, sites: Sequence[Site]) -> list[list[Site]]:
        """The sites, in order, in groups whose gradients fit into `memory`."""
        found: list[list[Site]] = []
        held = 0
        for site in sites:
            size = self.gradients * site.numel * site.weight.element_size()
            if not found or held + size > self.memory:
                found.append([])
                held = 0
            found[-1].append(site)
            held += size
        return found
