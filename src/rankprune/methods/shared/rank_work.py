"""Rank work shared out over processes: each layer is decomposed on one of them, the costliest assigned first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rankprune.core.method import Site
from rankprune.rank import rank_grads
from rankprune.rank.gradient import cost
from rankprune.rank.workers import owners as share_out


def rank_gradients(sites: Sequence[Site], delta: float, model: nn.Module | None = None) -> list[Tensor]:
    """This process's part of the rank gradient of each site.

    Where the model is DDP's or the weights are sharded, every layer has one owner, and what it computes is what all
    use: ranks cannot differ in it, whatever their hardware. A sharded layer is gathered on its owner alone.
    """
    peers = _peers(model, sites)
    if peers is None or not sites:
        return _gradients(sites, [site.weight for site in sites], delta)
    owners = share_out([cost(_matrix_shape(site)) for site in sites], dist.get_world_size(peers))
    me = dist.get_rank(peers)
    wholes = [site.shards.gather_on(o, site.weight) if site.shards else site.weight for o, site in zip(owners, sites)]
    mine = [i for i, owner in enumerate(owners) if owner == me]
    own = _gradients([sites[i] for i in mine], [wholes[i] for i in mine], delta)  # type: ignore[misc]
    found: dict[int, Tensor] = dict(zip(mine, own))
    return _deal_out(sites, owners, found, peers)


def _deal_out(sites: Sequence[Site], owners: Sequence[int], found: dict[int, Tensor], peers: Any) -> list[Tensor]:
    """From each owner to all: its rows to each where the layer is sharded, the whole otherwise."""
    parts: list[Tensor] = []
    under_way: list[Any] = []
    for i, (site, owner) in enumerate(zip(sites, owners)):
        if site.shards:
            parts.append(site.shards.scatter_from(owner, found.pop(i, None), site.weight))
            continue
        part = found[i].contiguous() if i in found else site.weight.new_empty(site.weight.shape)
        source = dist.get_global_rank(peers, owner)
        under_way.append(dist.broadcast(part, source, group=peers, async_op=True))
        parts.append(part)
    for work in under_way:
        work.wait()
    return parts


def _gradients(sites: Sequence[Site], weights: Sequence[Tensor], delta: float) -> list[Tensor]:
    grads = rank_grads([w.transpose(0, 1) if s.transposed else w for w, s in zip(weights, sites)], delta)
    return [grad.transpose(0, 1) if site.transposed else grad for grad, site in zip(grads, sites)]


def _peers(model: nn.Module | None, sites: Sequence[Site]) -> Any:
    """The processes that train this model together; None where there is one."""
    for site in sites:
        if site.shards:
            return site.shards.group
    return model.process_group if isinstance(model, DistributedDataParallel) else None


def _matrix_shape(site: Site) -> tuple[int, int]:
    rows, columns = (site.shape[1], site.shape[0]) if site.transposed else (site.shape[0], site.shape[1])
    return rows, columns * (site.numel // (rows * columns))
