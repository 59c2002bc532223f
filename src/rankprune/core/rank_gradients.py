"""Rank gradients of layers. Processes that train together share the work: each layer is decomposed on one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rankprune.rank import rank_grads
from rankprune.rank.gradient import cost
from rankprune.rank.workers import assign_owners

from .layer import PrunableLayer
from .shards import RowShards


def rank_gradients(layers: Sequence[PrunableLayer], delta: float, model: nn.Module | None = None) -> list[Tensor]:
    """This process's part of the rank gradient of each layer.

    Where the model is DDP's or the weights are sharded, every layer has one owner, and what it computes is what all
    use: ranks cannot differ in it, whatever their hardware. A sharded layer is gathered on its owner alone.

    Args:
        layers: The layers.
        delta: δ̃, the share of a matrix's energy beyond the rank k that is aimed at.
        model: The model they belong to, where DDP may wrap it.

    Returns:
        A tensor of the shape of each local weight.
    """
    peers = _peers(model, layers)
    if peers is None or not layers:
        return _gradients(layers, [layer.weight for layer in layers], delta)
    owners = assign_owners([cost(_matrix_shape(layer)) for layer in layers], dist.get_world_size(peers))
    me = dist.get_rank(peers)
    wholes = [layer.shards.gather_on(owner, layer.weight) for owner, layer in zip(owners, layers)]
    mine = [i for i, owner in enumerate(owners) if owner == me]
    own = _gradients([layers[i] for i in mine], [wholes[i] for i in mine], delta)  # type: ignore[misc]
    found: dict[int, Tensor] = dict(zip(mine, own))
    return _deal_out(layers, owners, found, peers)


def _deal_out(
    layers: Sequence[PrunableLayer], owners: Sequence[int], found: dict[int, Tensor], peers: Any
) -> list[Tensor]:
    """From each owner to all: its rows to each where the layer is sharded, the whole otherwise."""
    parts: list[Tensor] = []
    under_way: list[Any] = []
    for i, (layer, owner) in enumerate(zip(layers, owners)):
        if isinstance(layer.shards, RowShards):
            parts.append(layer.shards.scatter_from(owner, found.pop(i, None), layer.weight))
            continue
        part = found[i].contiguous() if i in found else layer.weight.new_empty(layer.weight.shape)
        source = dist.get_global_rank(peers, owner)
        under_way.append(dist.broadcast(part, source, group=peers, async_op=True))
        parts.append(part)
    for work in under_way:
        work.wait()
    return parts


def _gradients(layers: Sequence[PrunableLayer], weights: Sequence[Tensor], delta: float) -> list[Tensor]:
    grads = rank_grads([layer.matrix(weight) for layer, weight in zip(layers, weights)], delta)
    return [layer.like(grad) for layer, grad in zip(layers, grads)]


def _peers(model: nn.Module | None, layers: Sequence[PrunableLayer]) -> Any:
    """The processes that train this model together; None where there is one."""
    for layer in layers:
        if layer.shards.group is not None:
            return layer.shards.group
    return model.process_group if isinstance(model, DistributedDataParallel) else None


def _matrix_shape(layer: PrunableLayer) -> tuple[int, int]:
    return layer.rows, layer.numel // layer.rows
