"""The rank term of RPG's objective: the rank gradients of layers, and how large they are beside the task gradient.

Processes that train together share the work: each layer is decomposed on one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rankprune.core.layer import PrunableLayer
from rankprune.core.shards import RowShards
from rankprune.rank import rank_grads
from rankprune.rank.gradient import cost
from rankprune.rank.workers import assign_owners

RATIO = "ratio:"  # the prefix of a λ such as "ratio:0.3"


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


def scaled(layer: PrunableLayer, rank_grad: Tensor, lam: float | str, where: Tensor) -> Tensor:
    """Multiply a rank gradient, in place, by λ or so that its size is a given ratio of the task gradient's.

    A ratio means the same at every batch size, learning rate and stage of training.

    Args:
        layer: The layer, with its task gradient.
        rank_grad: The gradient of its rank loss.
        lam: λ, or "ratio:R": the root mean square becomes R times that of the task gradient.
        where: The positions over which root mean squares are taken: those at which the term will act.

    Returns:
        `rank_grad`.
    """
    if isinstance(lam, str):
        own = layer.rms(rank_grad, where)
        lam = float(lam.removeprefix(RATIO)) * layer.rms(layer.grad, where) / own if own > 0 else 0.0
    return rank_grad.mul_(lam)


def noise_like(layer: PrunableLayer, term: Tensor, where: Tensor, step: int) -> Tensor:
    """Normal noise as large as a term: the control that shows whether its direction matters.

    Args:
        layer: The layer.
        term: The term that the noise stands in for.
        where: The positions over which the root mean square of the term is taken.
        step: The optimizer step, which keys the noise.

    Returns:
        Noise of the term's shape, the same on every rank.
    """
    return layer.normal("noise", step) * layer.rms(term, where)


def check_coefficients(lam: object, delta: object) -> None:
    """Check λ and δ̃ of the rank loss.

    Args:
        lam: A number from 0, "ratio:R" with R from 0, a schedule or None.
        delta: A number from 0 to 1, a schedule or None.

    Raises:
        ValueError: One of them is something else.
    """
    if not (delta is None or callable(delta) or (isinstance(delta, (int, float)) and 0.0 <= delta <= 1.0)):
        raise ValueError(f"delta={delta!r} is not a number from 0 to 1: give one, or a schedule")
    if lam is None or callable(lam):
        return
    number = None if isinstance(lam, bool) else lam
    if isinstance(lam, str):
        try:
            number = float(lam.removeprefix(RATIO)) if lam.startswith(RATIO) else None
        except ValueError:
            number = None
    if not isinstance(number, (int, float)) or not 0.0 <= number < float("inf"):
        raise ValueError(f"lam={lam!r} is neither a number from 0, nor a ratio such as 'ratio:0.3', nor a schedule")


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
