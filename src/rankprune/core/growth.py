"""What drop-and-grow methods remember and set around an update: where grown weights start, what was ever active."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from .layer import Site, seeded

GrowInit = Literal["zero", "gradient", "random", "original"]
GROW_INITS: tuple[str, ...] = get_args(GrowInit)
_SMALL = 0.1  # of the root mean square of a layer's active weights


def initial_values(site: Site, how: str) -> Tensor:
    """What a weight of this site starts at when it is grown.

    gradient: one step of plain gradient descent, -lr · g. random: normal numbers with a tenth of the active weights'
    root mean square. original: the value that the weight had at attach.
    """
    if how == "gradient":
        return site.grad * -site.lr
    if how == "original":
        return site.state["original"]
    total = site.weight.masked_fill(~site.mask, 0.0).square().sum()
    rms = ((site.shards.sum(total) if site.shards else total) / max(site.kept(), 1)).sqrt()
    numbers = torch.randn(site.shape, generator=seeded(site.seed, site.step, f"{site.key}/grown"))
    return site.part(numbers).to(site.weight) * rms * _SMALL


def idle(site: Site) -> Tensor:
    """Active weights that are exactly 0."""
    return site.mask & (site.weight == 0)


def explore(site: Site) -> None:
    """Remember what is active now as explored, where that is kept at all."""
    if "explored" in site.state:
        site.state["explored"].logical_or_(site.mask)
