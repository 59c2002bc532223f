"""What drop-and-grow methods remember and set around an update: where grown weights start, what was ever active."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from .layer import PrunableLayer

GrowInit = Literal["zero", "gradient", "random", "original"]
_SMALL = 0.1  # of the root mean square of a layer's active weights


def initial_values(layer: PrunableLayer, how: str) -> Tensor:
    """What a weight of this layer starts at when it is grown.

    gradient: one step of plain gradient descent, -lr · g. random: normal numbers with a tenth of the active weights'
    root mean square. original: the value that the weight had at attach.

    Args:
        layer: The layer.
        how: "gradient", "original" or "random".
    """
    if how == "gradient":
        return layer.grad * -layer.lr
    if how == "original":
        return layer.state["original"]
    total = layer.weight.masked_fill(~layer.mask, 0.0).square().sum()
    rms = (layer.shards.sum(total) / max(layer.kept(), 1)).sqrt()
    return layer.normal("grown") * rms * _SMALL


def idle(layer: PrunableLayer) -> Tensor:
    """Active weights that are exactly 0.

    Args:
        layer: The layer.
    """
    return layer.mask & (layer.weight == 0)


def explore(layer: PrunableLayer) -> None:
    """Remember what is active now as explored, where that is kept at all.

    Args:
        layer: The layer.
    """
    if "explored" in layer.state:
        layer.state["explored"].logical_or_(layer.mask)
