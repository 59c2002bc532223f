"""Handlers of 3-D convolution and pooling, as 2-D operators on volumes [batch, channels, depth, height, width]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from rankprune.engine.graph.graph import Graph, Unsupported

from .operators_layer import conv2d
from .operators_pool import adaptive_avg_pool, max_pool
from .operators_view import stack
from .refs import IMAGES, Ref


def _volume(x: Any) -> Ref:
    if not isinstance(x, Ref) or x.view.ndim != 5 or x.batch_axis():
        raise Unsupported("not a batch of volumes")
    return x


def _triple(value: Any) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return [int(v) for v in (values * 3 if len(values) == 1 else values)]


def conv3d(
    graph: Graph, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Ref:  # fmt: skip
    """Capture a 3-D convolution: each output depth is a 2-D convolution over the channels of all depths that it reads.

    Args:
        graph: The graph.
        x: The volumes.
        weight: [outputs, inputs of a group, kd, kh, kw].
        bias: Per output channel, or None.
        stride: Along depth, height and width.
        padding: Along depth, height and width.
        dilation: Along depth, height and width.
        groups: Number of groups.

    Returns:
        The volumes.

    Raises:
        Unsupported: The weight is computed, or an output lies wholly in the padding.
    """
    x = _volume(x)
    if not isinstance(weight, Tensor) or isinstance(padding, str):
        raise Unsupported("a 3-D convolution by a computed weight or with a padding given by name")
    stride, padding, dilation = _triple(stride), _triple(padding), _triple(dilation)
    outputs, inputs, taps = weight.shape[:3]
    _, channels, depth, height, width = x.view.shape
    size = (depth + 2 * padding[0] - dilation[0] * (taps - 1) - 1) // stride[0] + 1
    slices = []
    for z in range(size):
        read = [(t, z * stride[0] - padding[0] + t * dilation[0]) for t in range(taps)]
        read = [(t, at) for t, at in read if 0 <= at < depth]  # taps in the padding are zero
        if not read:
            raise Unsupported("a 3-D convolution with outputs that lie in the padding")
        seen = x.view[:, :, [at for _, at in read]].reshape(IMAGES, channels * len(read), height, width)
        kernel = weight[:, :, [t for t, _ in read]].reshape(outputs, inputs * len(read), *weight.shape[3:])
        image = Ref(x.value, seen, x.count)
        slices.append(conv2d(graph, image, kernel, bias, stride[1:], padding[1:], dilation[1:], groups))
    return stack(graph, slices, 2)


def adaptive_avg_pool3d(graph: Graph, x: Any, size: Any) -> Ref:
    """Capture a mean over the whole volume.

    Args:
        graph: The graph.
        x: The volumes.
        size: Must be 1.

    Returns:
        [batch, channels, 1, 1, 1].

    Raises:
        Unsupported: The size is not 1.
    """
    x = _volume(x)
    if _triple(size) != [1, 1, 1]:
        raise Unsupported("an adaptive average of parts of a volume")
    batch, channels, depth, height, width = x.view.shape
    result = adaptive_avg_pool(graph, Ref(x.value, x.view.reshape(batch, channels, depth * height, width), x.count), 1)
    return Ref(result.value, result.view[..., None], result.count)


def max_pool3d(
    graph: Graph, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Ref:
    """Capture 3-D max pooling as two 2-D poolings: over rows and columns, then over depths.

    Args:
        graph: The graph.
        x: The volumes.
        kernel: Along depth, height and width.
        stride: Along depth, height and width; by default the kernel.
        padding: Along depth, height and width.
        dilation: Along depth, height and width.
        ceil: Round sizes up.

    Returns:
        The volumes.
    """
    x = _volume(x)
    kernel, padding, dilation = _triple(kernel), _triple(padding), _triple(dilation)
    stride = kernel if stride in ([], (), None) else _triple(stride)
    batch, channels, depth, height, width = x.view.shape
    images = Ref(x.value, x.view.reshape(batch, channels * depth, height, width), x.count)
    flat = max_pool(graph, images, kernel[1:], stride[1:], padding[1:], dilation[1:], ceil)
    rows, columns = flat.view.shape[2:]
    pillars = Ref(flat.value, flat.view.reshape(batch, channels, depth, rows * columns), flat.count)
    result = max_pool(graph, pillars, [kernel[0], 1], [stride[0], 1], [padding[0], 0], [dilation[0], 1], ceil)
    return Ref(result.value, result.view.reshape(batch, channels, -1, rows, columns), result.count)


HANDLERS: dict[str, Callable[..., Any]] = {
    "conv3d": conv3d,
    "max_pool3d": max_pool3d,
    "adaptive_avg_pool3d": adaptive_avg_pool3d,
}
