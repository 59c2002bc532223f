"""A floor under the structural rank: reserves the weights that a layer needs for it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rankprune.core.method import Extra, Group, PrunableLayer, Score
from rankprune.core.schedules import check_count, check_share
from rankprune.core.select import keep_largest


@dataclass
class RankFloor(Extra):
    """Reserve the largest weights that give each layer its structural rank, before the rest of the budget is spent.

    The rank of a layer is at most the largest matching of its mask, and a dead row can be revived neither by magnitude
    nor by the rank gradient, which is exactly 0 there. `cover` is what is reserved: "row", the largest weight of every
    output row; "row+column", that of every input channel too; "matching", min(m, n) weights of which no two share a row
    or column (full structural rank). `share` reserves only the largest part of it. If it needs more than `most` of the
    final budget, all layers get the same cap: a network is as wide as its narrowest layer, and a class without a weight
    is lost. The choice is made again at every `every`-th step.
    """

    name: ClassVar[str] = "rank_floor"
    cover: Literal["row", "row+column", "matching"] = "row"
    share: float = 1.0
    most: float = 0.4
    every: int = 1

    def __post_init__(self) -> None:
        if self.cover not in _COVERS:
            raise ValueError(f"cover={self.cover!r} is unknown: use {', '.join(map(repr, _COVERS))}")
        check_share("share", self.share)
        check_share("most", self.most)
        check_count(self.every, "every", "steps")

    def reserve(self, group: Group) -> Mapping[PrunableLayer, Tensor]:
        if group.step % self.every == 0 or any("floor" not in layer.state for layer in group.layers):
            self._choose(group)
        return {layer: layer.part(_as_mask(layer)) for layer in group.layers}

    def _choose(self, group: Group) -> None:
        """The reserved positions of every layer, as flat indices in its state."""
        ranked = {layer: layer.whole(candidates(layer)) for layer in group.layers}
        covers = {layer: _COVERS[self.cover](layer.matrix(ranked[layer])) for layer in group.layers}
        counts = {layer: int(self.share * int(cover.sum()) + 1e-9) for layer, cover in covers.items()}
        for layer, cover in covers.items():
            # A method that only cuts cannot bring a weight back: if the new choice needs one, the old choice stays.
            missing = cover & ~layer.matrix(layer.whole(layer.mask))
            if isinstance(group.method, Score) and "floor" in layer.state and bool(missing.any()):
                covers[layer] = layer.matrix(_as_mask(layer))
                counts[layer] = layer.state["floor"].numel()  # `share` was applied to it already
        cap = _cap([(count, layer.cost) for layer, count in counts.items()], self.most * group.final)
        for layer, cover in covers.items():
            index = layer.like(cover).reshape(-1).nonzero().view(-1)  # flat positions in the weight
            layer.state["floor"] = index[keep_largest(ranked[layer].reshape(-1)[index], min(counts[layer], cap))]


def candidates(layer: PrunableLayer) -> Tensor:
    """What a weight is worth to the floor: its magnitude; outside the mask its gradient, scaled below all magnitudes.

    Args:
        layer: The layer.
    """
    values = layer.value.abs()
    if "latent" in layer.state or layer.parameter.grad is None or layer.kept() == layer.numel:
        return values
    grads = layer.grad.abs()
    least = -layer.shards.max(torch.where(layer.mask & (values > 0), -values, -torch.inf))
    least = torch.where(least.isfinite(), least, 1.0)  # 1 if none is active
    return torch.where(layer.mask, values, grads / layer.shards.max(grads).clamp_min(1e-30) * least * 0.5)


def _cap(wanted: Sequence[tuple[int, int]], limit: float) -> int:
    """The largest cap on the count of every layer at which the cost stays within the limit.

    `wanted` has the count of each layer and the cost of one of its weights.
    """
    most = max((count for count, _ in wanted), default=0)
    return bisect_right(range(most + 1), limit, key=lambda cap: sum(min(n, cap) * cost for n, cost in wanted)) - 1


def _as_mask(layer: PrunableLayer) -> Tensor:
    mask = torch.zeros(layer.numel, dtype=torch.bool, device=layer.weight.device)
    mask[layer.state["floor"].to(mask.device)] = True
    return mask.view(layer.shape)


def row_cover(values: Tensor) -> Tensor:
    """The largest entry of every row.

    Args:
        values: What each weight is worth, as a matrix.
    """
    best = values.flatten(1).argmax(1, keepdim=True)
    return torch.zeros_like(values, dtype=torch.bool).flatten(1).scatter_(1, best, True).view(values.shape)


def row_and_column_cover(values: Tensor) -> Tensor:
    """The largest entry of every output row and of every input channel.

    Args:
        values: What each weight is worth, (out, in, ...).
    """
    return row_cover(values) | row_cover(values.transpose(0, 1)).transpose(0, 1)


def matching_cover(values: Tensor) -> Tensor:
    """A greedy matching of min(m, n) entries: in each round, those that are the largest of their row and column.

    Args:
        values: What each weight is worth, as a matrix.
    """
    matrix = values.flatten(1)
    rows, columns = (torch.arange(n, device=values.device) for n in matrix.shape)
    mask = torch.zeros_like(matrix, dtype=torch.bool)
    while rows.numel() and columns.numel():
        free = matrix[rows][:, columns]
        best_column = free.argmax(1)
        best_row = free.argmax(0)
        leads = best_row[best_column] == torch.arange(rows.numel(), device=values.device)  # each is the other's best
        mask[rows[leads], columns[best_column[leads]]] = True
        taken = best_column[leads]
        rows = rows[~leads]
        keep = torch.ones(columns.numel(), dtype=torch.bool, device=values.device)
        keep[taken] = False
        columns = columns[keep]
    return mask.view(values.shape)


_COVERS: dict[str, Callable[[Tensor], Tensor]] = {
    "row": row_cover,
    "row+column": row_and_column_cover,
    "matching": matching_cover,
}
