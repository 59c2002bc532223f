"""Handlers of layers with weights and norms. See `operators`."""

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
    """Convert a tensor to a contiguous float32 array.

    Args:
        tensor: The tensor.

    Returns:
        The array.
    """
    return np.ascontiguousarray(tensor.detach().float().numpy())


def image(graph: Graph, x: Any) -> int:
    """Return a batch of images as a value [C, H, W].

    Args:
        graph: The graph.
        x: [batch, C, H, W].

    Returns:
        The value.

    Raises:
        Unsupported: It is not a batch of images.
    """
    if not isinstance(x, Ref) or x.view.ndim != 4 or x.batch_axis():
        raise Unsupported("not a batch of images")
    return materialize(graph, x)


def pair(value: Any) -> list[int]:
    """Return a size along y and x.

    Args:
        value: One number or two.

    Returns:
        Two integers.
    """
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return [int(v) for v in (values * 2 if len(values) == 1 else values)]


def bias_of(bias: Tensor | None, size: int) -> np.ndarray:
    """Return a bias as an array.

    Args:
        bias: The bias, or None for zeros.
        size: Its length.

    Returns:
        The array.
    """
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
    """Capture a convolution.

    Args:
        graph: The graph.
        x: [batch, C, H, W].
        weight: [outputs, inputs of a group, kh, kw].
        bias: Per output channel, or None.
        stride: Along y and x.
        padding: Along y and x, or its name.
        dilation: Along y and x.
        groups: Number of groups.

    Returns:
        The images.

    Raises:
        Unsupported: The weight is computed, or its taps are too far apart for the kernels.
    """
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
    planes = plane_set((weight.shape[0], *size), list(weight.shape[2:]), stride, padding, dilation)
    channels = 1 if groups == 1 else weight.shape[1]  # a grouped convolution cannot be divided into blocks
    # Lowering checks it again, with the strides between channels.
    if planes.taps.max() + (channels - 1) * planes.count * planes.rows >= REACH:
        raise Unsupported("taps too far apart for the kernels' offsets")
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "activation": "none"}
    return emit(
        graph, "conv", [source], (weight.shape[0], *size), attrs=attrs, weight=Weight.of(array(weight)),
        arrays={"bias": bias_of(bias, weight.shape[0])},
    )  # fmt: skip


def named_padding(name: str, kernel: Sequence[int], dilation: list[int]) -> list[int]:
    """Return the padding "same" or "valid" as numbers.

    Args:
        name: The name.
        kernel: Height and width of the window.
        dilation: Along y and x.

    Returns:
        Padding along y and x.

    Raises:
        Unsupported: The padding would be asymmetric.
    """
    around = [0, 0] if name == "valid" else [d * (k - 1) for d, k in zip(dilation, kernel)]
    if any(n % 2 for n in around):
        raise Unsupported("an uneven padding")
    return [n // 2 for n in around]


def linear(graph: Graph, x: Ref, weight: Any, bias: Any = None) -> Ref:
    """Capture a linear layer; over the channels of an image it is a 1x1 convolution.

    Args:
        graph: The graph.
        x: [..., inputs].
        weight: [outputs, inputs].
        bias: Per output, or None.

    Returns:
        [..., outputs].

    Raises:
        Unsupported: The weight is computed, or the layer is over the batch.
    """
    if not isinstance(weight, Tensor) or not isinstance(x, Ref):
        raise Unsupported("a product of two computed tensors")
    per_image, _ = x.split_batch_axis()
    axis, local = per_image.batch_axis(), per_image.local()
    if axis == per_image.view.ndim - 1 or local.shape[-1] != weight.shape[1]:
        raise Unsupported("a linear layer over the batch")
    shown = (*x.view.shape[:-1], weight.shape[0])
    arrays = {"bias": bias_of(bias, weight.shape[0])}
    pixels = image_pixels(graph, per_image)
    if pixels is not None:  # a linear layer over the channels of an image is a 1x1 convolution
        size = graph.shapes[x.value][1:]
        result = emit(
            graph, "conv", [x.value], (weight.shape[0], *size), attrs={**AFFINE, "groups": 1},
            weight=Weight.of(array(weight)[:, :, None, None]), arrays=arrays,
        )  # fmt: skip
        return channels_last(result, pixels, axis, shown)
    shape = local.shape if local.ndim == 1 else (int(np.prod(local.shape[:-1])), local.shape[-1])
    source = materialize(graph, per_image, shape)
    result = emit(
        graph, "linear", [source], (*shape[:-1], weight.shape[0]), attrs={"activation": "none"},
        weight=Weight.of(array(weight)), arrays=arrays,
    )  # fmt: skip
    view = np.moveaxis(result.view.reshape(IMAGES, *local.shape[:-1], weight.shape[0]), 0, axis)
    return Ref(result.value, view.reshape(shown), result.count)


def linear_along(graph: Graph, x: Ref, axis: int, weight: Tensor) -> Ref:
    """Capture a linear layer over one axis, such as a row or column of an image.

    Args:
        graph: The graph.
        x: A tensor.
        axis: The axis; its length is the layer's inputs.
        weight: [outputs, inputs].

    Returns:
        The tensor, with the outputs along the axis.
    """
    result = linear(graph, Ref(x.value, np.moveaxis(x.view, axis, -1), x.count), weight)
    return Ref(result.value, np.moveaxis(result.view, -1, axis), result.count)


def product(graph: Graph, x: Any, weight: Any) -> Ref:
    """Capture a product with a constant matrix on the right, as a linear layer.

    Args:
        graph: The graph.
        x: [..., inputs].
        weight: [inputs, outputs].

    Returns:
        [..., outputs].

    Raises:
        Unsupported: The matrix is computed.
    """
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        raise Unsupported("a product of two computed tensors")
    return linear(graph, x, weight.T)


def sum_and_product(graph: Graph, bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> Ref:
    """Capture `addmm` with a constant matrix and bias, as in Conv1D of Hugging Face.

    Args:
        graph: The graph.
        bias: Per output.
        x: [..., inputs].
        weight: [inputs, outputs].
        beta: Must be 1.
        alpha: Must be 1.

    Returns:
        [..., outputs].

    Raises:
        Unsupported: The matrix or the bias is computed.
    """
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
    """Capture a batch norm in evaluation mode.

    Args:
        graph: The graph.
        x: [batch, channels, ...].
        weight: Scale per channel, or None.
        bias: Shift per channel, or None.
        mean: Running mean.
        var: Running variance.
        training: Must be false.
        momentum: Not used.
        eps: Added to the variance.

    Returns:
        The normalized tensor.

    Raises:
        Unsupported: It uses the statistics of the batch.
    """
    if training or mean is None or not isinstance(x, Ref):
        raise Unsupported("batch norm by the batch's own statistics")
    scale = 1.0 / np.sqrt(array(var).astype(np.float64) + eps) * (1.0 if weight is None else array(weight))
    shift = (0.0 if bias is None else array(bias)) - array(mean) * scale
    if (
        x.view.ndim == 4 and x.batch_axis() == 0
    ):  # a depthwise 1x1 convolution, which fusion folds into the layer before
        attrs = {**AFFINE, "groups": scale.size}
        kernel = Weight((scale.size, 1, 1, 1), scale.astype(np.float32), None)
        return emit(
            graph, "conv", [materialize(graph, x)], x.view.shape[1:], attrs=attrs, weight=kernel,
            arrays={"bias": shift.astype(np.float32)},
        )  # fmt: skip
    shape = (-1, *[1] * (x.view.ndim - 2))
    first = constant(graph, "mul", x, scale.astype(np.float32).reshape(shape))
    return constant(graph, "add", first, shift.astype(np.float32).reshape(shape))


def layer_norm(
    graph: Graph, x: Ref, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Ref:
    """Capture a LayerNorm over the last axis.

    Args:
        graph: The graph.
        x: [..., channels].
        shape: Must be the size of the last axis.
        weight: Scale per channel, or None.
        bias: Shift per channel, or None.
        eps: Added to the variance.

    Returns:
        The normalized tensor.

    Raises:
        Unsupported: It is over several axes.
    """
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
        result = emit(graph, "layernorm", [x.value], graph.shapes[x.value], attrs={"eps": float(eps)}, arrays=arrays)
        return channels_last(result, pixels, axis, x.view.shape)
    source = materialize(graph, per_image, (int(np.prod(local.shape[:-1])), channels))
    result = emit(graph, "layernorm", [source], graph.shapes[source], attrs={"eps": float(eps)}, arrays=arrays)
    view = np.moveaxis(result.view.reshape(IMAGES, *local.shape), 0, axis)
    return Ref(result.value, view.reshape(x.view.shape), result.count)


HANDLERS: dict[str, Callable[..., Any]] = {
    "conv2d": conv2d, "linear": linear, "mm": product, "addmm": sum_and_product,
    "batch_norm": batch_norm, "layer_norm": layer_norm,
}  # fmt: skip
