"""Latents under one threshold that rises along a schedule: the base of Feather, ST-3 and STR."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rankprune.core import masks
from rankprune.core.method import Group, Latent, PrunableLayer
from rankprune.core.plan import Ramp


@dataclass(kw_only=True)
class Thresholded(Latent):
    """The largest latents stay, each shrunk by the threshold T, the largest latent that does not stay.

    The count falls along a cubic from `prune_start` to `prune_end`. sign(w) (|w|^p - T^p)^(1/p) is continuous at T;
    p = 1 is the soft threshold and large p the hard one. A weight that stays without being above T (the last of a
    layer, or reserved by an extra) is not shrunk.

    Args:
        p: The power of the threshold function; 1 is the soft threshold, large values the hard one.
    """

    plan: Ramp = Ramp()
    p: float = 1.0

    def __post_init__(self) -> None:
        if not self.p > 0.0:
            raise ValueError(f"p={self.p!r} is no power: 1 is the soft threshold, 3 Feather's")

    def latent_at(self, layer: PrunableLayer, score: Tensor) -> Tensor:
        """The magnitude of a latent with this score; 0 for the score -inf.

        Args:
            layer: The layer.
            score: Scores, as `score` returns them.
        """
        return score.clamp_min(0.0)

    def start(self, group: Group) -> None:
        super().start(group)
        for layer in group.layers:
            layer.state["threshold"] = layer.weight.new_zeros(())

    def update(self, group: Group) -> None:
        self.cut_to(group, group.scheduled())

    def cut_to(self, group: Group, budget: int) -> None:
        """Keep the largest scores within this budget, and set the thresholds to the largest that does not stay.

        Args:
            group: The layers that the method works on.
            budget: What they keep together, in weights (or MACs).
        """
        below = self.keep_best(group, budget)
        cost = [layer.cost if self.budget == "macs" else 1 for layer in group.layers]
        if below is not None:
            cut = [group.layers[0].state["latent"].new_tensor(below)] * len(cost)
        else:
            outside = (layer.fill_kept(self.score(layer).clone(), -torch.inf) for layer in group.layers)
            cut = [layer.shards.max(masks.in_memory_order(s)) / c for layer, s, c in zip(group.layers, outside, cost)]
            if self.distribution == "global":
                cut = [torch.stack([value.to(cut[0]) for value in cut]).max()] * len(cut)
        for layer, c, value in zip(group.layers, cost, cut):
            layer.state["threshold"] = self.latent_at(layer, value * c).to(layer.weight)

    def effective(self, layer: PrunableLayer) -> Tensor:
        latent = layer.state["latent"]
        reserved = [] if layer.reserved is None else [layer.reserved]
        kept = layer.positions(latent, *reserved)
        if kept is None:
            return torch.where(layer.mask, self._shrunk(layer, latent, *reserved), 0.0)
        image = torch.zeros_like(latent)
        values = self._shrunk(layer, *(masks.in_memory_order(t)[kept] for t in (latent, *reserved)))
        masks.in_memory_order(image)[kept] = values  # pow() is expensive: only of what stays
        return image

    def _shrunk(self, layer: PrunableLayer, values: Tensor, reserved: Tensor | None = None) -> Tensor:
        size, threshold = values.abs(), layer.state["threshold"]
        shrinks = size > threshold if reserved is None else (size > threshold) & ~reserved
        small = size - threshold if self.p == 1 else (size**self.p - threshold**self.p).clamp_min_(0) ** (1 / self.p)
        return torch.where(shrinks, small.copysign(values), values)
