"""Layers with weights, and pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from rankprune.engine.graph.graph import Graph, Unsupported, Weight
from rankprune.engine.graph.planes import plane_set
from rankprune.engine.graph.target import REACH

from .operators_elementwise import constant
from .refs import IMAGES, Ref, channels_last, emit, image_pixels, materialize

AFFINE = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "activation": "none"}


def array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().float().numpy())


def image(graph: Graph, x: Any) -> int:
    """A value [C, H, W] with the batch in front."""
    if not isinstance(x, Ref) or x.view.ndim != 4 or x.batch_axis():
        raise Unsupported("not a batch of images")
    return materialize(graph, x)


def pair(value: Any) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return [int(v) for v in (values * 2 if len(values) == 1 else values)]


def bias_of(bias: Tensor | None, size: int) -> np.ndarray:
    return np.zeros(size, np.float32) if bias is None else array(bias)


def conv2d(
    graph: Graph,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Ref:
    source = image(graph, x)
    if not isinstance(weight, Tensor):
        raise Unsupported("convolution by a computed weight")
    _, height, width = graph.shapes[source]
    stride, dilation = pair(stride), pair(dilation)
    padding = named_padding(padding, weight.shape[2:], dilation) if isinstance(padding, str) else pair(padding)
    size = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip((height, width), padding, dilation, weight.shape[2:], stride)
    ]
    made = plane_set((weight.shape[0], *size), list(weight.shape[2:]), stride, padding, dilation)
    channels = 1 if groups == 1 else weight.shape[1]  # that cannot be worked in blocks
    if made.taps.max() + (channels - 1) * made.count * made.rows >= REACH:  # strides may add to it: lowering refuses
        raise Unsupported("taps too far apart for the kernels' offsets")
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "activation": "none"}
    return emit(
        graph, "conv", [source], (weight.shape[0], *size), attrs=attrs, weight=Weight.of(array(weight)),
        arrays={"bias": bias_of(bias, weight.shape[0])},
    )  # fmt: skip


def named_padding(name: str, kernel: Sequence[int], dilation: list[int]) -> list[int]:
    around = [0, 0] if name == "valid" else [d * (k - 1) for d, k in zip(dilation, kernel)]
    if any(n % 2 for n in around):
        raise Unsupported("an uneven padding")
    return [n // 2 for n in around]


def linear(graph: Graph, x: Ref, weight: Any, bias: Any = None) -> Ref:
    if not isinstance(weight, Tensor) or not isinstance(x, Ref):
        raise Unsupported("a product of two computed tensors")
    per_image, _ = x.split_batch_axis()
    axis, local = per_image.batch_axis(), per_image.local()
    if axis == per_image.view.ndim - 1 or local.shape[-1] != weight.shape[1]:
        raise Unsupported("a linear layer over the batch")
    shown = (*x.view.shape[:-1], weight.shape[0])
    arrays = {"bias": bias_of(bias, weight.shape[0])}
    pixels = image_pixels(graph, per_image)
    if pixels is not None:  # channels of an image: a 1x1 convolution of it as it lies
        size = graph.shapes[x.value][1:]
        made = emit(
            graph, "conv", [x.value], (weight.shape[0], *size), attrs={**AFFINE, "groups": 1},
            weight=Weight.of(array(weight)[:, :, None, None]), arrays=arrays,
        )  # fmt: skip
        return channels_last(made, pixels, axis, shown)
    shape = local.shape if local.ndim == 1 else (int(np.prod(local.shape[:-1])), local.shape[-1])
    source = materialize(graph, per_image, shape)
    made = emit(
        graph, "linear", [source], (*shape[:-1], weight.shape[0]), attrs={"activation": "none"},
        weight=Weight.of(array(weight)), arrays=arrays,
    )  # fmt: skip
    view = np.moveaxis(made.view.reshape(IMAGES, *local.shape[:-1], weight.shape[0]), 0, axis)
    return Ref(made.value, view.reshape(shown), made.count)


def product(graph: Graph, x: Any, weight: Any) -> Ref:
    """By a constant matrix on the right: a linear layer whose weight lies the other way."""
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        raise Unsupported("a product of two computed tensors")
    return linear(graph, x, weight.T)


def sum_and_product(graph: Graph, bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> Ref:
    """As Hugging Face's Conv1D has it."""
    if not isinstance(weight, Tensor) or not isinstance(bias, Tensor) or bias.dim() != 1 or (alpha, beta) != (1, 1):
        raise Unsupported("a product of two computed tensors")
    return linear(graph, x, weight.T, bias)


def batch_norm(
    graph: Graph,
    x: Ref,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Ref:
    if training or mean is None or not isinstance(x, Ref):
        raise Unsupported("batch norm by the batch's own statistics")
    scale = 1.0 / np.sqrt(array(var).astype(np.float64) + eps) * (1.0 if weight is None else array(weight))
    shift = (0.0 if bias is None else array(bias)) - array(mean) * scale
    if x.view.ndim == 4 and x.batch_axis() == 0:  # a depthwise 1x1 convolution, until it is folded into the one before
        attrs = {**AFFINE, "groups": scale.size}
        kernel = Weight((scale.size, 1, 1, 1), scale.astype(np.float32), None)
        return emit(
            graph, "conv", [materialize(graph, x)], x.view.shape[1:], attrs=attrs, weight=kernel,
            arrays={"bias": shift.astype(np.float32)},
        )  # fmt: skip
    shape = (-1, *[1] * (x.view.ndim - 2))
    first = constant(graph, "mul", x, scale.astype(np.float32).reshape(shape))
    return constant(graph, "add", first, shift.astype(np.float32).reshape(shape))


def pool_attrs(average: bool, kernel: Any, stride: Any, padding: Any, dilation: Any, count_pad: bool) -> dict[str, Any]:
    kernel = pair(kernel)
    return {
        "average": int(average), "kernel": kernel, "stride": pair(stride) if stride not in ([], (), None) else kernel,
        "padding": pair(padding), "dilation": pair(dilation), "count_pad": int(count_pad),
    }  # fmt: skip


def pooled(graph: Graph, x: Any, attrs: dict[str, Any], ceil: bool) -> Ref:
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
    return pooled(graph, x, pool_attrs(False, kernel, stride, padding, dilation, False), ceil)


def avg_pool(
    graph: Graph, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, count_pad: bool = True,
    divisor: Any = None,
) -> Ref:  # fmt: skip
    if divisor is not None:
        raise Unsupported("an average with a divisor of its own")
    return pooled(graph, x, pool_attrs(True, kernel, stride, padding, 1, count_pad), ceil)


def adaptive_avg_pool(graph: Graph, x: Any, size: Any) -> Ref:
    source = image(graph, x)
    channels, height, width = graph.shapes[source]
    out = pair(size)
    if out == [1, 1]:
        made = emit(graph, "mean", [source], (channels,))
        return Ref(made.value, made.view.reshape(IMAGES, channels, 1, 1), made.count)
    if height % out[0] or width % out[1]:
        raise Unsupported("an adaptive average of uneven windows")
    kernel = [height // out[0], width // out[1]]
    return pooled(graph, x, pool_attrs(True, kernel, kernel, 0, 1, False), False)


def layer_norm(
    graph: Graph, x: Ref, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Ref:
    per_image, _split = x.split_batch_axis()
    axis, local = per_image.batch_axis(), per_image.local()
    if len(shape) != 1 or axis == per_image.view.ndim - 1:
        raise Unsupported("LayerNorm over several axes")
    channels = local.shape[-1]
    arrays = {
        "weight": np.ones(channels, np.float32) if weight is None else array(weight),
        "bias": bias_of(bias, channels),
    }
    pixels = image_pixels(graph, per_image)
    if pixels is not None:
        made = emit(graph, "layernorm", [x.value], graph.shapes[x.value], attrs={"eps": float(eps)}, arrays=arrays)
        return channels_last(made, pixels, axis, x.view.shape)
    source = materialize(graph, per_image, (int(np.prod(local.shape[:-1])), channels))
    made = emit(graph, "layernorm", [source], graph.shapes[source], attrs={"eps": float(eps)}, arrays=arrays)
    view = np.moveaxis(made.view.reshape(IMAGES, *local.shape), 0, axis)
    return Ref(made.value, view.reshape(x.view.shape), made.count)


HANDLERS: dict[str, Callable[..., Any]] = {
    "conv2d": conv2d, "linear": linear, "mm": product, "addmm": sum_and_product,
    "batch_norm": batch_norm, "max_pool2d": max_pool, "avg_pool2d": avg_pool,
    "adaptive_avg_pool2d": adaptive_avg_pool, "layer_norm": layer_norm,
}  # fmt: skip
