"""Handlers of 1-D convolution and pooling, transposed convolution and resampling. See `operators`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankprune.engine.graph.graph import Graph, Unsupported

from .operators_layer import conv2d, linear_along, pair
from .operators_pool import adaptive_avg_pool, avg_pool, max_pool
from .refs import IMAGES, Ref


def _lifted(x: Any) -> Ref:
    """A sequence [batch, channels, length] as an image of one row."""
    if not isinstance(x, Ref) or x.view.ndim != 3:
        raise Unsupported("something else than a batch of sequences")
    return Ref(x.value, x.view[:, :, None], x.count)


def _lowered(x: Ref) -> Ref:
    return Ref(x.value, x.view[:, :, 0], x.count)


def _one(value: Any, beside: int) -> Any:
    """A size along a sequence as sizes along y and x of an image of one row."""
    return value if isinstance(value, str) else [beside, *(value if isinstance(value, (list, tuple)) else [value])]


def conv1d(
    graph: Graph, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Ref:  # fmt: skip
    """Capture a 1-D convolution, on images of one row.

    Args:
        graph: The graph.
        x: [batch, C, length].
        weight: [outputs, inputs of a group, k].
        bias: Per output channel, or None.
        stride: The stride.
        padding: The padding.
        dilation: The dilation.
        groups: Number of groups.

    Returns:
        The sequences.

    Raises:
        Unsupported: The weight is computed.
    """
    if not isinstance(weight, Tensor):
        raise Unsupported("convolution by a computed weight")
    sizes = _one(stride, 1), _one(padding, 0), _one(dilation, 1)
    return _lowered(conv2d(graph, _lifted(x), weight[:, :, None], bias, *sizes, groups))


def max_pool1d(
    graph: Graph, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Ref:
    """Capture 1-D max pooling, on images of one row.

    Args:
        graph: The graph.
        x: [batch, C, length].
        kernel: Its length.
        stride: By default the kernel.
        padding: The padding.
        dilation: The dilation.
        ceil: Round sizes up.

    Returns:
        The sequences.
    """
    step = _one(stride, 1) if stride not in ([], (), None) else _one(kernel, 1)
    return _lowered(max_pool(graph, _lifted(x), _one(kernel, 1), step, _one(padding, 0), _one(dilation, 1), ceil))


def avg_pool1d(
    graph: Graph, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, count_pad: bool = True
) -> Ref:
    """Capture 1-D average pooling, on images of one row.

    Args:
        graph: The graph.
        x: [batch, C, length].
        kernel: Its length.
        stride: By default the kernel.
        padding: The padding.
        ceil: Round sizes up.
        count_pad: The padding counts.

    Returns:
        The sequences.
    """
    step = _one(stride, 1) if stride not in ([], (), None) else _one(kernel, 1)
    return _lowered(avg_pool(graph, _lifted(x), _one(kernel, 1), step, _one(padding, 0), ceil, count_pad))


def adaptive_avg_pool1d(graph: Graph, x: Any, size: Any) -> Ref:
    """Capture 1-D adaptive average pooling, on images of one row.

    Args:
        graph: The graph.
        x: [batch, C, length].
        size: Length of the result.

    Returns:
        The sequences.
    """
    return _lowered(adaptive_avg_pool(graph, _lifted(x), _one(size, 1)))


def conv_transpose2d(
    graph: Graph, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, more: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Ref:  # fmt: skip
    """Capture a transposed convolution: all phases in one convolution with stride² times the outputs, then a move.

    Result y = s·m + r is the sum over u of x[m − u] · w[r + s·u]: a convolution of x for each phase r.

    Args:
        graph: The graph.
        x: [batch, C, H, W].
        weight: [inputs, outputs of a group, kh, kw].
        bias: Per output channel, or None.
        stride: Along y and x.
        padding: Along y and x.
        more: torch's `output_padding`.
        groups: Number of groups.
        dilation: Along y and x.

    Returns:
        The images.

    Raises:
        Unsupported: The weight is computed, or the input is not images.
    """
    if not isinstance(weight, Tensor) or not isinstance(x, Ref) or x.view.ndim != 4:
        raise Unsupported("a transposed convolution of something else than images")
    stride, padding, more, dilation = pair(stride), pair(padding), pair(more), pair(dilation)
    inputs, each, *kernel = weight.shape
    spread = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    sizes = [(n - 1) * s - 2 * p + k + m for n, s, p, k, m in zip(x.view.shape[2:], stride, padding, spread, more)]
    # Taps of a phase, with one more if the result extends beyond the last tap.
    taps = [-(-(k + max(0, m - p)) // s) for k, s, p, m in zip(spread, stride, padding, more)]
    full = torch.zeros(inputs, each, *(t * s for t, s in zip(taps, stride)))
    full[:, :, : spread[0] : dilation[0], : spread[1] : dilation[1]] = weight.detach().float()
    split = full.reshape(groups, inputs // groups, each, taps[0], stride[0], taps[1], stride[1]).flip(3, 5)
    phases = stride[0] * stride[1]
    kernels = split.permute(0, 2, 4, 6, 1, 3, 5).reshape(groups * each * phases, inputs // groups, *taps)
    shift = None if bias is None else bias.detach().float().repeat_interleave(phases)
    around = [t - 1 for t in taps]
    result = conv2d(graph, x, kernels, shift, 1, around, 1, groups)
    view = result.view.reshape(IMAGES, groups * each, *stride, *result.view.shape[2:]).transpose(0, 1, 4, 2, 5, 3)
    view = view.reshape(IMAGES, groups * each, view.shape[2] * stride[0], -1)
    (top, height), (left, width) = zip(padding, sizes)
    return Ref(result.value, view[:, :, top : top + height, left : left + width], result.count)


def conv_transpose1d(
    graph: Graph, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, more: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Ref:  # fmt: skip
    """Capture a 1-D transposed convolution, on images of one row.

    Args:
        graph: The graph.
        x: [batch, C, length].
        weight: [inputs, outputs of a group, k].
        bias: Per output channel, or None.
        stride: The stride.
        padding: The padding.
        more: torch's `output_padding`.
        groups: Number of groups.
        dilation: The dilation.

    Returns:
        The sequences.

    Raises:
        Unsupported: The weight is computed.
    """
    if not isinstance(weight, Tensor):
        raise Unsupported("convolution by a computed weight")
    result = conv_transpose2d(
        graph, _lifted(x), weight[:, :, None], bias, _one(stride, 1), _one(padding, 0), _one(more, 0), groups,
        _one(dilation, 1),
    )  # fmt: skip
    return _lowered(result)


def nearest(graph: Graph, x: Any, size: Any = None, *scales: Any, **named: Any) -> Ref:
    """Capture nearest-neighbour resampling as a view that repeats numbers; torch determines which.

    Args:
        graph: The graph.
        x: [batch, C, ...].
        size: Size of the result, or None.
        *scales: Scale factors.
        **named: May hold `scale_factors`.

    Returns:
        The view.
    """
    shape = _resampled("nearest", x, size, scales, named)
    index = np.arange(int(np.prod(x.view.shape[2:]))).reshape(x.view.shape[2:])
    ramp = torch.from_numpy(index).double()[None, None]
    source = shape(ramp)[0, 0].round().long().numpy()
    view = x.view.reshape(*x.view.shape[:2], -1)[:, :, source]
    return Ref(x.value, view, x.count)


def linearly(mode: str) -> Callable[..., Any]:
    """Return the handler of linear interpolation: along each axis a sparse layer whose weights torch computes.

    Args:
        mode: "linear" or "bilinear".

    Returns:
        The handler.
    """

    def handler(graph: Graph, x: Any, size: Any, corners: bool = False, *scales: Any, **named: Any) -> Ref:
        result = x
        for axis in range(2, x.view.ndim):
            length = x.view.shape[axis]
            unit = torch.eye(length)[None, None] if mode == "bilinear" else torch.eye(length)[None]
            matrix = _along(mode, unit, axis - 2, x.view.ndim - 2, size, corners, scales, named)
            result = linear_along(graph, result, axis, matrix)
        return result

    return handler


def _factors(scales: Sequence[Any], named: dict[str, Any]) -> Sequence[float] | None:
    """The scale factor of each axis, which torch passes one by one, as a list, or by name; None if there is none."""
    listed = [s for s in (*scales, named.get("scale_factors")) if s is not None]
    return listed[0] if listed and isinstance(listed[0], (list, tuple)) else listed or None


def _along(mode: str, unit: Tensor, axis: int, axes: int, size: Any, corners: bool, scales: Any, named: Any) -> Tensor:
    """The weights of an interpolation along one axis, [out, in]."""
    factors = _factors(scales, named)
    length = unit.shape[-1]
    if mode == "bilinear":
        target = [length, int(size[axis])] if size is not None else None
        factor = None if factors is None else [1.0, float(factors[axis])]
        if target is not None:
            resized = torch.nn.functional.interpolate(unit, target, mode="bilinear", align_corners=corners)
        else:
            resized = torch.nn.functional.interpolate(unit, scale_factor=factor, mode="bilinear", align_corners=corners)
        return resized[0, 0].T.contiguous()
    target = None if size is None else [int(size[0])]
    factor = None if factors is None or target is not None else [float(factors[0])]
    return torch.nn.functional.interpolate(unit, target, factor, "linear", corners)[0].T.contiguous()


def _resampled(mode: str, x: Any, size: Any, scales: Any, named: Any) -> Callable[[Tensor], Tensor]:
    if not isinstance(x, Ref) or x.view.ndim not in (3, 4) or x.batch_axis():
        raise Unsupported("resampling of something else than images")
    factors = _factors(scales, named)
    if size is not None:
        return lambda t: torch.nn.functional.interpolate(t, [int(n) for n in size], mode=mode)
    return lambda t: torch.nn.functional.interpolate(t, scale_factor=[float(f) for f in factors or []], mode=mode)


HANDLERS: dict[str, Callable[..., Any]] = {
    "conv1d": conv1d,
    "max_pool1d": max_pool1d,
    "avg_pool1d": avg_pool1d,
    "adaptive_avg_pool1d": adaptive_avg_pool1d,
    "conv_transpose2d": conv_transpose2d,
    "conv_transpose1d": conv_transpose1d,
    "upsample_nearest1d": nearest,
    "upsample_nearest2d": nearest,
    "upsample_bilinear2d": linearly("bilinear"),
    "upsample_linear1d": linearly("linear"),
}
