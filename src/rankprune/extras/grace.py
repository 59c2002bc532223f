"""Grace: a grown weight is protected during the next updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rankprune.core.method import DropGrow, Extra, Group, Method, PrunableLayer
from rankprune.core.schedules import check_share
from rankprune.core.select import keep_largest, select

_OUT = -1  # in a layer's state: not in the mask. Otherwise the number of updates during which it is still protected


@dataclass
class Grace(Extra):
    """Keep a grown weight through the next `updates` mask updates, whatever its magnitude.

    A grown weight starts from 0 and is compared with trained weights at the next update, under a falling budget:
    without protection most grown weights are cut again before they are trained, and the growth criterion has little
    effect. If more than the share `most` of the weights would be protected, only the largest of them are.
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

    def reserve(self, group: Group) -> Mapping[PrunableLayer, Tensor]:
        for layer in group.layers:
            left = layer.state.get("grace")
            if left is None:
                left = torch.zeros_like(layer.mask, dtype=torch.int8)
            born = layer.mask & (left == _OUT)
            left = torch.where(born, self.updates, (left - 1).clamp_min(0))
            layer.state["grace"] = torch.where(layer.mask, left, _OUT).to(torch.int8)
        protected = {layer: layer.state["grace"] > 0 for layer in group.layers}
        limit = int(self.most * sum(layer.kept() for layer in group.layers))
        if sum(layer.count(mask) for layer, mask in protected.items()) <= limit:
            return protected
        sizes = [torch.where(mask, layer.weight.abs().float(), -torch.inf) for layer, mask in protected.items()]
        counts = select(sizes, limit, shards=[layer.shards for layer in protected]).counts
        return {layer: keep_largest(size, n, layer.shards) for layer, size, n in zip(protected, sizes, counts)}
