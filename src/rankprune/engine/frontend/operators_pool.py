"""Handlers of 2-D pooling. See `operators`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rankprune.engine.graph.graph import Graph, Unsupported

from .operators_layer import image, linear_along, pair
from .refs import IMAGES, Ref, emit


def pool_attrs(average: bool, kernel: Any, stride: Any, padding: Any, dilation: Any, count_pad: bool) -> dict[str, Any]:
    """Return the attributes of a pooling node.

    Args:
        average: Average instead of maximum.
        kernel: Along y and x.
        stride: Along y and x; by default the kernel.
        padding: Along y and x.
        dilation: Along y and x.
        count_pad: The padding counts in averages.

    Returns:
        The attributes.
    """
    kernel = pair(kernel)
    return {
        "average": int(average), "kernel": kernel, "stride": pair(stride) if stride not in ([], (), None) else kernel,
        "padding": pair(padding), "dilation": pair(dilation), "count_pad": int(count_pad),
    }  # fmt: skip


def pooled(graph: Graph, x: Any, attrs: dict[str, Any], ceil: bool) -> Ref:
    """Append a pooling node.

    Args:
        graph: The graph.
        x: [batch, C, H, W].
        attrs: What `pool_attrs` returned.
        ceil: Round sizes up.

    Returns:
        The images.
    """
    source = image(graph, x)
    channels, *sizes = graph.shapes[source]
    out = []
    for n, k, s, p, d in zip(sizes, *(attrs[name] for name in ("kernel", "stride", "padding", "dilation"))):
        room = n + 2 * p - d * (k - 1) - 1
        size = (-(-room // s) if ceil else room // s) + 1
        out.append(size - 1 if ceil and (size - 1) * s >= n + p else size)
    return emit(graph, "pool", [source], (channels, *out), attrs=attrs)


def max_pool(
    graph: Graph, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Ref:
    """Capture max pooling.

    Args:
        graph: The graph.
        x: [batch, C, H, W].
        kernel: Along y and x.
        stride: Along y and x; by default the kernel.
        padding: Along y and x.
        dilation: Along y and x.
        ceil: Round sizes up.

    Returns:
        The images.
    """
    return pooled(graph, x, pool_attrs(False, kernel, stride, padding, dilation, False), ceil)


def avg_pool(
    graph: Graph, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, count_pad: bool = True,
    divisor: Any = None,
) -> Ref:  # fmt: skip
    """Capture average pooling.

    Args:
        graph: The graph.
        x: [batch, C, H, W].
        kernel: Along y and x.
        stride: Along y and x; by default the kernel.
        padding: Along y and x.
        ceil: Round sizes up.
        count_pad: The padding counts.
        divisor: Must be None.

    Returns:
        The images.

    Raises:
        Unsupported: There is a divisor.
    """
    if divisor is not None:
        raise Unsupported("an average with a divisor of its own")
    return pooled(graph, x, pool_attrs(True, kernel, stride, padding, 1, count_pad), ceil)


def adaptive_avg_pool(graph: Graph, x: Any, size: Any) -> Ref:
    """Capture adaptive average pooling; where its windows differ in size, as a linear layer along each axis.

    Args:
        graph: The graph.
        x: [batch, C, H, W].
        size: Height and width of the result.

    Returns:
        The images.
    """
    source = image(graph, x)
    channels, height, width = graph.shapes[source]
    out = pair(size)
    if out == [1, 1]:
        result = emit(graph, "mean", [source], (channels,))
        return Ref(result.value, result.view.reshape(IMAGES, channels, 1, 1), result.count)
    if height % out[0] or width % out[1]:
        for axis, (length, outs) in enumerate(zip((height, width), out), 2):
            means = torch.nn.functional.adaptive_avg_pool1d(torch.eye(length)[None], outs)[0]  # [length, outs]
            x = linear_along(graph, x, axis, means.T.contiguous())
        return x
    kernel = [height // out[0], width // out[1]]
    return pooled(graph, x, pool_attrs(True, kernel, kernel, 0, 1, False), False)


HANDLERS: dict[str, Callable[..., Any]] = {
    "max_pool2d": max_pool, "avg_pool2d": avg_pool, "adaptive_avg_pool2d": adaptive_avg_pool,
}  # fmt: skip
