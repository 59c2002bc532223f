"""Time for what was grown: hold a new weight through the next updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rankprune.core.method import DropGrow, Extra, Group, Method, Site
from rankprune.core.schedules import check_share
from rankprune.core.select import keep_largest, select

_OUT = -1  # in a site's state: not in the mask. Else the number of updates through which it is still held.


@dataclass
class Grace(Extra):
    """Hold a grown weight through the next `updates` mask updates, whatever its magnitude.

    It starts from 0 and is measured against trained weights at the next update, under a budget that falls: without time
    most of what is grown is cut again before it is worth anything, and what steers growth steers little. Where more
    than `most` of the weights would be held, the largest of them are.
    """

    name: ClassVar[str] = "grace"
    updates: int = 3
    most: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.updates, int) or not 1 <= self.updates <= 100:
            raise ValueError(f"updates={self.updates!r} is not a number of updates: give an int from 1 to 100")
        check_share("most", self.most)

    def check(self, method: Method) -> None:
        if not isinstance(method, DropGrow):
            raise ValueError(f"grace holds what is grown and {method.info.name} grows nothing: use one such as rpg")

    def reserve(self, group: Group) -> Mapping[Site, Tensor]:
        for site in group.sites:
            left = site.state.get("grace")
            if left is None:
                left = torch.zeros_like(site.mask, dtype=torch.int8)
            born = site.mask & (left == _OUT)
            left = torch.where(born, self.updates, (left - 1).clamp_min(0))
            site.state["grace"] = torch.where(site.mask, left, _OUT).to(torch.int8)
        held = {site: site.state["grace"] > 0 for site in group.sites}
        limit = int(self.most * sum(site.kept() for site in group.sites))
        if sum(site.count(mask) for site, mask in held.items()) <= limit:
            return held
        sizes = [torch.where(mask, site.weight.abs().float(), -torch.inf) for site, mask in held.items()]
        counts = select(sizes, limit, shards=[site.shards for site in held]).counts
        return {site: keep_largest(size, n, site.shards) for site, size, n in zip(held, sizes, counts)}
