"""Handlers of sums, means, norms and maxima over axes, and of group norms. See `operators`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rankprune.engine.graph.graph import Graph, Unsupported

from .operators_elementwise import binary, constant, power, unary
from .operators_layer import array, linear
from .operators_pool import max_pool
from .refs import IMAGES, Ref, emit, materialize


def _axes(x: Any, dims: Any) -> list[int]:
    if not isinstance(x, Ref):
        raise Unsupported("a sum of something else than a tensor")
    listed = dims if isinstance(dims, (list, tuple)) else [] if dims is None else [dims]
    return sorted(d % x.view.ndim for d in listed) or list(range(x.view.ndim))


def mean(graph: Graph, x: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Ref:
    """Capture a mean: over pixels or tokens by its own kernel, over other axes by a layer with constant weights.

    Args:
        graph: The graph.
        x: The tensor.
        dims: The axes; None for all.
        keepdim: Keep the axes with size 1.

    Returns:
        The mean.
    """
    axes = _axes(x, dims)
    left = [1 if i in axes else n for i, n in enumerate(x.view.shape) if keepdim or i not in axes]
    if _plain(x, axes):
        source = materialize(graph, x)
        shape = graph.shapes[source]
        result = emit(graph, "mean", [source], shape[:1] if len(shape) == 3 else shape[1:])
    else:
        rest = [i for i in range(x.view.ndim) if i not in axes]
        view = x.view.transpose([*rest, *axes])
        size = math.prod(x.view.shape[i] for i in axes)
        flat = Ref(x.value, view.reshape(*view.shape[: len(rest)], size), x.count)
        result = linear(graph, flat, torch.full((1, size), 1 / size))
    return Ref(result.value, result.view.reshape(left), result.count)


def _plain(x: Ref, axes: list[int]) -> bool:
    try:
        front = x.batch_axis() == 0
    except Unsupported:
        return False
    return front and ((x.view.ndim == 4 and axes == [2, 3]) or (x.view.ndim == 3 and axes == [1]))


def total(graph: Graph, x: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Ref:
    """Capture a sum.

    Args:
        graph: The graph.
        x: The tensor.
        dims: The axes; None for all.
        keepdim: Keep the axes with size 1.

    Returns:
        The sum.
    """
    count = math.prod(x.view.shape[i] for i in _axes(x, dims))
    return constant(graph, "mul", mean(graph, x, dims, keepdim), np.float32(count))


def maximum(graph: Graph, x: Any, dims: Any = None, keepdim: bool = False) -> Ref:
    """Capture a maximum as a pooling window over the axes: [batch, channels, 1, pixels] -> [batch, channels, 1, 1].

    Args:
        graph: The graph.
        x: The tensor.
        dims: The axes; None for all.
        keepdim: Keep the axes with size 1.

    Returns:
        The maximum.

    Raises:
        Unsupported: The batch is one of the axes.
    """
    axes, batch = _axes(x, dims), x.batch_axis()
    if batch in axes:
        raise Unsupported("a maximum over the images of a batch")
    rest = [i for i in range(x.view.ndim) if i != batch and i not in axes]
    size = math.prod(x.view.shape[i] for i in axes)
    view = x.view.transpose([batch, *rest, *axes]).reshape(IMAGES, -1, 1, size)
    result = max_pool(graph, Ref(x.value, view, x.count), [1, size])
    shown = result.view.reshape(IMAGES, *(x.view.shape[i] for i in rest))
    shown = np.moveaxis(shown, 0, sum(i < batch for i in rest))
    left = [1 if i in axes else n for i, n in enumerate(x.view.shape) if keepdim or i not in axes]
    return Ref(result.value, shown.reshape(left), result.count)


def vector_norm(graph: Graph, x: Any, order: Any = 2, dims: Any = None, keepdim: bool = False, **_: Any) -> Ref:
    """Capture a vector norm of order 1 or 2.

    Args:
        graph: The graph.
        x: The tensor.
        order: The order.
        dims: The axes; None for all.
        keepdim: Keep the axes with size 1.

    Returns:
        The norm.

    Raises:
        Unsupported: The order is another one.
    """
    if order == 1:
        return total(graph, unary(graph, x, "abs"), dims, keepdim)
    if order != 2:
        raise Unsupported(f"a norm of order {order}")
    return unary(graph, total(graph, binary(graph, "mul", x, x), dims, keepdim), "sqrt")


def group_norm(
    graph: Graph, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Ref:
    """Capture a group norm: means and variances of the channels, averaged within each group by a small layer.

    Args:
        graph: The graph.
        x: [batch, channels, ...].
        groups: Number of groups.
        weight: Scale per channel, or None.
        bias: Shift per channel, or None.
        eps: Added to the variance.

    Returns:
        The normalized tensor.

    Raises:
        Unsupported: The tensor has no channels after the batch.
    """
    if not isinstance(x, Ref) or x.batch_axis() or x.view.ndim < 3:
        raise Unsupported("a norm over groups of something else than channels")
    batch, channels, *size = x.view.shape
    flat = Ref(x.value, x.view.reshape(batch, channels, 1, -1) if len(size) != 2 else x.view, x.count)
    each = torch.block_diag(*[torch.full((channels // groups,) * 2, groups / channels)] * groups)

    def average(value: Ref) -> Ref:
        result = mean(graph, value, [2, 3])
        result = result if groups == channels else linear(graph, result, each)
        return Ref(result.value, result.view[..., None, None], result.count)

    centred = binary(graph, "sub", flat, average(flat))
    variance = average(binary(graph, "mul", centred, centred))
    scale = power(graph, constant(graph, "add", variance, np.float32(eps)), -0.5)
    if weight is not None:
        scale = constant(graph, "mul", scale, array(weight)[:, None, None])
    result = binary(graph, "mul", centred, scale)
    if bias is not None:
        result = constant(graph, "add", result, array(bias)[:, None, None])
    return Ref(result.value, result.view.reshape(x.view.shape), result.count)


def instance_norm(
    graph: Graph, x: Any, weight: Any, bias: Any, mean: Any, var: Any, own: bool, momentum: float, eps: float, *_: Any
) -> Ref:
    """Capture an instance norm, as a group norm with one channel per group.

    Args:
        graph: The graph.
        x: [batch, channels, ...].
        weight: Scale per channel, or None.
        bias: Shift per channel, or None.
        mean: Not used.
        var: Not used.
        own: Normalize by the statistics of the input; must be true.
        momentum: Not used.
        eps: Added to the variance.

    Returns:
        The normalized tensor.

    Raises:
        Unsupported: It uses running statistics.
    """
    if not own:
        raise Unsupported("an instance norm by running statistics")
    return group_norm(graph, x, x.view.shape[1], weight, bias, eps)


HANDLERS: dict[str, Callable[..., Any]] = {
    "mean": mean,
    "sum": total,
    "amax": maximum,
    "linalg_vector_norm": vector_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
}
