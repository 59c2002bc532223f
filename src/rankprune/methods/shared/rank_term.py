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

    Under DDP or FSDP2 every layer has one owner, which computes the gradient for all ranks, so that ranks cannot differ
    in it whatever their hardware. A sharded layer is gathered on its owner only.

    Args:
        layers: The layers.
        delta: δ̃, the target for the share of a matrix's energy beyond rank k.
        model: The model they belong to, which DDP may wrap.

    Returns:
        A tensor of the shape of each local weight.
    """
    peers = _peers(model, layers)
    if peers is None or not layers:
        return _gradients(layers, [layer.weight for layer in layers], delta)
    shapes = [(layer.rows, layer.numel // layer.rows) for layer in layers]  # (out, in*kh*kw)
    owners = assign_owners([cost(shape) for shape in shapes], dist.get_world_size(peers))
    weights = [layer.shards.gather_on(owner, layer.weight) for owner, layer in zip(owners, layers)]
    owned = [i for i, owner in enumerate(owners) if owner == dist.get_rank(peers)]
    grads = _gradients([layers[i] for i in owned], [weights[i] for i in owned], delta)  # type: ignore[misc]
    return _distribute(layers, owners, dict(zip(owned, grads)), peers)


def scaled(layer: PrunableLayer, rank_grad: Tensor, lam: float | str, where: Tensor) -> Tensor:
    """Multiply a rank gradient, in place, by λ or so that its size is a given ratio of the task gradient's.

    A ratio means the same at every batch size, learning rate and stage of training.

    Args:
        layer: The layer, with its task gradient.
        rank_grad: The gradient of its rank loss.
        lam: λ, or "ratio:R": the root mean square becomes R times that of the task gradient.
        where: A mask of the positions at which the term will act, over which root mean squares are taken.

    Returns:
        `rank_grad`.
    """
    if isinstance(lam, str):
        own = layer.rms(rank_grad, where)
        lam = float(lam.removeprefix(RATIO)) * layer.rms(layer.grad, where) / own if own > 0 else 0.0
    return rank_grad.mul_(lam)


def noise_like(layer: PrunableLayer, term: Tensor, where: Tensor, step: int) -> Tensor:
    """Normal noise with the root mean square of a term: a control that shows whether its direction matters.

    Args:
        layer: The layer.
        term: The term that the noise stands in for.
        where: A mask of the positions over which the root mean square is taken.
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


def _distribute(
    layers: Sequence[PrunableLayer], owners: Sequence[int], grads: dict[int, Tensor], peers: Any
) -> list[Tensor]:
    """Send each gradient from its owner to all ranks: scattered by rows if the layer is sharded, else broadcast."""
    parts: list[Tensor] = []
    pending: list[Any] = []
    for i, (layer, owner) in enumerate(zip(layers, owners)):
        if isinstance(layer.shards, RowShards):
            parts.append(layer.shards.scatter_from(owner, grads.pop(i, None), layer.weight))
            continue
        part = grads[i].contiguous() if i in grads else layer.weight.new_empty(layer.weight.shape)
        source = dist.get_global_rank(peers, owner)
        pending.append(dist.broadcast(part, source, group=peers, async_op=True))
        parts.append(part)
    for work in pending:
        work.wait()
    return parts


def _gradients(layers: Sequence[PrunableLayer], weights: Sequence[Tensor], delta: float) -> list[Tensor]:
    grads = rank_grads([layer.matrix(weight) for layer, weight in zip(layers, weights)], delta)
    return [layer.like(grad) for layer, grad in zip(layers, grads)]


def _peers(model: nn.Module | None, layers: Sequence[PrunableLayer]) -> Any:
    """The process group that trains this model; None if there is one process."""
    for layer in layers:
        if layer.shards.group is not None:
            return layer.shards.group
    return model.process_group if isinstance(model, DistributedDataParallel) else None
