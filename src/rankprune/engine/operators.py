"""What each ATen operator is in the engine's graph. A handler raises Unsupported to leave a call to torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from . import operators_elementwise, operators_view
from .graph import Graph, Unsupported, Weight
from .lower_window import plane_set
from .operators_attention import attention
from .operators_elementwise import constant
from .packing import REACH
from .refs import IMAGES, Ref, emit, settle

Handler = Callable[..., Any]


def find(name: str) -> Handler:
    """The handler of an operator by its full name; in-place ones are the same as the others."""
    base = name.split(".")[1] if name.startswith("aten.") else name
    for table in (_HANDLERS, operators_elementwise.HANDLERS, operators_view.HANDLERS):
        for key in (base, base.removesuffix("_")):
            if key in table:
                return table[key]
    raise Unsupported(name)


def moves(name: str) -> bool:
    """Whether an operator only moves numbers."""
    return find(name) in operators_view.HANDLERS.values()


def array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().float().numpy())


def image(graph: Graph, x: Any) -> int:
    """A value [C, H, W] with the batch in front."""
    if not isinstance(x, Ref) or x.view.ndim != 4 or x.batch_axis():
        raise Unsupported("not a batch of images")
    return settle(graph, x)


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
    if made.taps.max() + (channels - 1) * made.count * made.rows >= REACH:
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
    apart, _ = x.apart()
    axis, local = apart.batch_axis(), apart.local()
    if axis == apart.view.ndim - 1 or local.shape[-1] != weight.shape[1]:
        raise Unsupported("a linear layer over the batch")
    shape = local.shape if local.ndim == 1 else (int(np.prod(local.shape[:-1])), local.shape[-1])
    source = settle(graph, apart, shape)
    made = emit(
        graph, "linear", [source], (*shape[:-1], weight.shape[0]), attrs={"activation": "none"},
        weight=Weight.of(array(weight)), arrays={"bias": bias_of(bias, weight.shape[0])},
    )  # fmt: skip
    view = np.moveaxis(made.view.reshape(IMAGES, *local.shape[:-1], weight.shape[0]), 0, axis)
    return Ref(made.value, view.reshape(*x.view.shape[:-1], weight.shape[0]), made.count)


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
    if training or mean is None or not isinstance(x, Ref) or x.batch_axis():
        raise Unsupported("batch norm by the batch's own statistics")
    scale = 1.0 / np.sqrt(array(var).astype(np.float64) + eps) * (1.0 if weight is None else array(weight))
    shift = (0.0 if bias is None else array(bias)) - array(mean) * scale
    local = x.local()
    if local.ndim == 3:  # a depthwise 1x1 convolution, until it is folded into the one before
        attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": scale.size, "activation": "none"}
        kernel = Weight((scale.size, 1, 1, 1), scale.astype(np.float32), None)
        return emit(
            graph, "conv", [settle(graph, x)], local.shape, attrs=attrs, weight=kernel,
            arrays={"bias": shift.astype(np.float32)},
        )  # fmt: skip
    first = constant(graph, "mul", x, scale.astype(np.float32).reshape(-1, *[1] * (local.ndim - 1)))
    return constant(graph, "add", first, shift.astype(np.float32).reshape(-1, *[1] * (local.ndim - 1)))


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


def mean(graph: Graph, x: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Ref:
    axes = (
        sorted(d % x.view.ndim for d in (dims if isinstance(dims, (list, tuple)) else [dims]))
        if dims is not None
        else []
    )
    if x.batch_axis() == 0 and x.view.ndim == 4 and axes == [2, 3]:
        shape = graph.shapes[settle(graph, x)]
        made = emit(graph, "mean", [settle(graph, x)], shape[:1])
    elif x.batch_axis() == 0 and x.view.ndim == 3 and axes == [1]:
        source = settle(graph, x)
        made = emit(graph, "mean", [source], graph.shapes[source][1:])
    else:
        raise Unsupported("a mean over other axes than pixels or tokens")
    left = [1 if keepdim and i in axes else n for i, n in enumerate(x.view.shape) if keepdim or i not in axes]
    return Ref(made.value, made.view.reshape(left), made.count)


def layer_norm(
    graph: Graph, x: Ref, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Ref:
    axis, local = x.batch_axis(), x.local()
    if len(shape) != 1 or axis == x.view.ndim - 1:
        raise Unsupported("LayerNorm over several axes")
    channels = local.shape[-1]
    source = settle(graph, x, (int(np.prod(local.shape[:-1])), channels))
    arrays = {
        "weight": np.ones(channels, np.float32) if weight is None else array(weight),
        "bias": bias_of(bias, channels),
    }
    made = emit(graph, "layernorm", [source], graph.shapes[source], attrs={"eps": float(eps)}, arrays=arrays)
    return Ref(made.value, np.moveaxis(made.view.reshape(IMAGES, *local.shape), 0, axis), made.count)


def softmax(graph: Graph, x: Ref, dim: int, *_: Any) -> Ref:
    axis, local = x.batch_axis(), x.local()
    if dim % x.view.ndim != x.view.ndim - 1 or axis == x.view.ndim - 1:
        raise Unsupported("a softmax over another axis than the last")
    shape = local.shape if local.ndim == 1 else (int(np.prod(local.shape[:-1])), local.shape[-1])
    made = emit(graph, "softmax", [settle(graph, x, shape)], shape)
    return Ref(made.value, np.moveaxis(made.view.reshape(IMAGES, *local.shape), 0, axis), made.count)


_HANDLERS: dict[str, Handler] = {
    "conv2d": conv2d, "linear": linear, "mm": product, "matmul": product, "addmm": sum_and_product,
    "batch_norm": batch_norm, "max_pool2d": max_pool, "avg_pool2d": avg_pool,
    "mean": mean, "adaptive_avg_pool2d": adaptive_avg_pool, "layer_norm": layer_norm, "softmax": softmax,
    "scaled_dot_product_attention": attention,
}  # fmt: skip
