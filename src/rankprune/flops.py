"""MACs of a model, dense and sparse, and the cost of training by a method as a share of dense training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torch import nn
from torch.nn.modules.conv import _ConvNd

from .core.cost import Timing
from .core.macs import FlopReport, FlopRow, count, positions
from .core.method import method_info

__all__ = ["FlopReport", "FlopRow", "count", "dense_training_flops", "positions", "svd_flops", "training_flops"]


def training_flops(
    method: str,
    f: float | Sequence[float],
    *,
    every: int = 100,
    backward: float = 1.0,
    update_end: float = 1.0,
    extra: float = 0.0,
) -> float:
    """The cost of training by a method as a share of dense training.

    A dense step is three passes per sample: forward, gradient of the activations, gradient of the weights.

    Args:
        method: A name of `list_methods()`, or "dense".
        f: The cost of a sparse pass as a share of a dense one: a number, or one number for each of several equal parts
            of training, for methods that change the density.
        every: Steps between two mask updates.
        backward: The cost of the weight gradient on Top-KAST's backward set, as a share of a dense pass.
        update_end: The share of training with mask updates.
        extra: Further cost as a share of dense training, such as that of RPG's SVDs.

    Returns:
        The share; 1 is dense training.

    Raises:
        ValueError: There is no such method; the message names the nearest.
    """
    if method == "dense":
        return 1.0 + extra
    costs = [float(x) for x in f] if isinstance(f, Sequence) else [float(f)]
    timing = Timing(every=every, update_end=update_end, backward=backward)
    return method_info(method).cost.share(costs, timing) + extra


def dense_training_flops(macs: float, samples: float) -> float:
    """FLOPs of dense training: three passes, and two FLOPs per MAC.

    Args:
        macs: MACs of a forward pass on one sample.
        samples: How many samples are seen, over all epochs.
    """
    return 3 * 2 * macs * samples


def svd_flops(layers: nn.Module | Iterable[Sequence[int]], updates: int = 1) -> float:
    """FLOPs of a full SVD of each layer at each update, as the RPG paper counts them; `rank_grads` needs far fewer.

    Args:
        layers: A model, of which the convolutions are counted, or the shapes of weights.
        updates: How many mask updates there are.

    Returns:
        The sum of 2mn² + 11n³ over layers of m rows and n columns.
    """
    if isinstance(layers, nn.Module):
        layers = [m.weight.shape for m in layers.modules() if isinstance(m, _ConvNd)]
    sizes = [(shape[0], math.prod(shape[1:])) for shape in layers]  # (out, in*kh*kw)
    return float(sum(2 * m * n**2 + 11 * n**3 for m, n in sizes) * updates)
