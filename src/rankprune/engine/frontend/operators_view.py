"""Handlers of operators that only move numbers: the same operation on the view's array. See `operators`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from rankprune.engine.graph.graph import Graph, Node, Unsupported, Weight

from .refs import IMAGES, Ref, identity_view, materialize, pick


def _moved(change: Callable[..., np.ndarray]) -> Callable[..., Ref]:
    def handler(graph: Graph, x: Ref, *args: Any, **kwargs: Any) -> Ref:
        kwargs.pop("memory_format", None)
        return Ref(x.value, change(x.view, *args, **kwargs), x.count)

    return handler


def _flatten(v: np.ndarray, start: int = 0, end: int = -1) -> np.ndarray:
    start, end = start % v.ndim, end % v.ndim
    return v.reshape(*v.shape[:start], -1, *v.shape[end + 1 :])


def _unflatten(v: np.ndarray, dim: int, sizes: Any) -> np.ndarray:
    dim %= v.ndim
    return v.reshape(*v.shape[:dim], *sizes, *v.shape[dim + 1 :])


def _slice(v: np.ndarray, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> np.ndarray:
    return v[(slice(None),) * (dim % v.ndim) + (slice(start, end, step),)]


def _squeeze(v: np.ndarray, dim: Any = None) -> np.ndarray:
    dims = range(v.ndim) if dim is None else [d % v.ndim for d in (dim if isinstance(dim, (list, tuple)) else [dim])]
    return v.reshape([n for i, n in enumerate(v.shape) if not (i in dims and n == 1)])


def _expand(v: np.ndarray, size: Any, **_: Any) -> np.ndarray:
    extra = len(size) - v.ndim
    return np.broadcast_to(v, [n if n != -1 else v.shape[i - extra] for i, n in enumerate(size)])


def _roll(v: np.ndarray, shifts: Any, dims: Any = ()) -> np.ndarray:
    shifts, dims = (list(n) if isinstance(n, (list, tuple)) else [n] for n in (shifts, dims))
    return np.roll(v, shifts, dims) if dims else np.roll(v.reshape(-1), shifts[0]).reshape(v.shape)


def _repeat_interleave(v: np.ndarray, times: Any, dim: int | None = None, **_: Any) -> np.ndarray:
    if not isinstance(times, int):
        raise Unsupported("a number of repeats for each entry")
    return v.repeat(times, dim)


def _pixel_shuffle(v: np.ndarray, factor: int) -> np.ndarray:
    *lead, channels, height, width = v.shape
    split = v.reshape(*lead, channels // factor**2, factor, factor, height, width)
    at = len(lead)
    order = [*range(at), at, at + 3, at + 1, at + 4, at + 2]
    return split.transpose(order).reshape(*lead, channels // factor**2, height * factor, width * factor)


def _parts(cut: Callable[..., list[np.ndarray]]) -> Callable[..., list[Ref]]:
    def handler(graph: Graph, x: Ref, *args: Any) -> list[Ref]:
        return [Ref(x.value, part, x.count) for part in cut(x.view, *args)]

    return handler


def _unbind(v: np.ndarray, dim: int = 0) -> list[np.ndarray]:
    return [v.take(i, dim) for i in range(v.shape[dim])]


def _split(v: np.ndarray, size: Any, dim: int = 0) -> list[np.ndarray]:
    bounds = np.cumsum(size)[:-1] if isinstance(size, (list, tuple)) else range(size, v.shape[dim], size)
    return np.split(v, list(bounds), dim)


def _chunk(v: np.ndarray, count: int, dim: int = 0) -> list[np.ndarray]:
    return _split(v, -(-v.shape[dim] // count), dim)


def cat(graph: Graph, parts: list[Any], dim: int = 0) -> Ref:
    """Capture a concatenation of computed tensors, or of one computed tensor and constants.

    Args:
        graph: The graph.
        parts: The tensors.
        dim: The axis.

    Returns:
        The result.

    Raises:
        Unsupported: It is along the batch, or of several computed tensors with constants.
    """
    refs = [p for p in parts if isinstance(p, Ref)]
    axis = refs[0].batch_axis()
    dim %= refs[0].view.ndim
    if any(r.batch_axis() != axis for r in refs) or dim == axis:
        raise Unsupported("a concatenation along the batch")
    local = dim - (axis < dim)
    if len(refs) == len(parts):
        inputs = [materialize(graph, r) for r in refs]
        shape = list(graph.shapes[inputs[0]])
        shape[local] = sum(graph.shapes[i][local] for i in inputs)
        output = graph.value(tuple(shape))
        graph.nodes.append(Node("concat", inputs, output, attrs={"axis": local}))
        return identity_view(graph, output, axis)
    if len(refs) > 1:
        raise Unsupported("a concatenation of several computed tensors with constants")
    index: list[np.ndarray] = []
    fixed: list[np.ndarray] = []
    count = 0
    for part in parts:
        if isinstance(part, Ref):
            index.append(part.local())
            continue
        both = part.detach().float().numpy() if isinstance(part, Tensor) else np.asarray(part, np.float32)
        if both.shape[axis] != IMAGES or not np.array_equal(both.take(0, axis), both.take(1, axis)):
            raise Unsupported("a constant that differs between images")
        one = both.take(0, axis)
        index.append(-1 - count - np.arange(one.size).reshape(one.shape))
        fixed.append(one.reshape(-1))
        count += one.size
    return identity_view(graph, pick(graph, refs[0].value, np.concatenate(index, local), np.concatenate(fixed)), axis)


def stack(graph: Graph, parts: list[Any], dim: int = 0) -> Ref:
    """Capture a concatenation along a new axis.

    Args:
        graph: The graph.
        parts: The tensors.
        dim: The new axis.

    Returns:
        The result.
    """
    ndim = next(p.view.ndim for p in parts if isinstance(p, Ref))
    dim %= ndim + 1
    wider = [
        Ref(p.value, np.expand_dims(p.view, dim), p.count) if isinstance(p, Ref) else p.unsqueeze(dim) for p in parts
    ]
    return cat(graph, wider, dim)


def pad(graph: Graph, x: Ref, widths: list[int], mode: str = "constant", value: float | None = None) -> Ref:
    """Capture padding.

    Args:
        graph: The graph.
        x: The tensor.
        widths: Two per axis, from the last axis on; negative ones crop.
        mode: "constant", "reflect", "replicate" or "circular".
        value: Of the padding, for "constant".

    Returns:
        The result.

    Raises:
        Unsupported: The batch would be padded.
    """
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    axis, view = x.batch_axis(), x.local()
    pairs = [(0, 0)] * (x.view.ndim - len(widths) // 2) + list(zip(widths[-2::-2], widths[-1::-2]))
    if mode not in modes or pairs.pop(axis) != (0, 0):
        raise Unsupported("padding of the batch")
    inner = view[tuple(slice(max(0, -a), n - max(0, -b)) for (a, b), n in zip(pairs, view.shape))]
    around = [(max(0, a), max(0, b)) for a, b in pairs]
    if mode != "constant":
        index = np.pad(inner, around, mode=modes[mode])  # type: ignore[call-overload]
        return identity_view(graph, pick(graph, x.value, index), axis)
    index = np.pad(inner, around, constant_values=-1)
    return identity_view(graph, pick(graph, x.value, index, np.array([value or 0.0], np.float32)), axis)


def im2col(graph: Graph, x: Ref, kernel: list[int], dilation: list[int], padding: list[int], stride: list[int]) -> Ref:
    """Capture an unfold into patches, as a convolution with one-hot kernels.

    Args:
        graph: The graph.
        x: [batch, C, H, W].
        kernel: Along y and x.
        dilation: Along y and x.
        padding: Along y and x.
        stride: Along y and x.

    Returns:
        [batch, C * kh * kw, patches].

    Raises:
        Unsupported: The input is not images.
    """
    if x.view.ndim != 4 or x.batch_axis():
        raise Unsupported("patches of something else than images")
    source = materialize(graph, x)
    channels, height, width = graph.shapes[source]
    count = channels * kernel[0] * kernel[1]
    out = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip((height, width), padding, dilation, kernel, stride)
    ]
    attrs = {
        "stride": list(stride),
        "padding": list(padding),
        "dilation": list(dilation),
        "groups": 1,
        "activation": "none",
    }
    position = np.arange(count, dtype=np.int32) * (count + 1)  # the diagonal of [count, channels * window]
    weight = Weight((count, channels, *kernel), np.ones(count, np.float32), position)
    output = graph.value((count, *out))
    graph.nodes.append(
        Node("conv", [source], output, attrs=attrs, arrays={"bias": np.zeros(count, np.float32)}, weight=weight)
    )
    columns = identity_view(graph, output)
    return Ref(columns.value, columns.view.reshape(IMAGES, count, -1), columns.count)


HANDLERS: dict[str, Callable[..., Any]] = {
    "view": _moved(lambda v, size: v.reshape(size)),
    "reshape": _moved(lambda v, size: v.reshape(size)),
    "_unsafe_view": _moved(lambda v, size: v.reshape(size)),
    "flatten": _moved(_flatten),
    "unflatten": _moved(_unflatten),
    "permute": _moved(lambda v, dims: v.transpose(dims)),
    "transpose": _moved(lambda v, a, b: v.swapaxes(a, b)),
    "t": _moved(lambda v: v.T),
    "select": _moved(lambda v, dim, index: v.take(index, dim)),
    "slice": _moved(_slice),
    "squeeze": _moved(_squeeze),
    "unsqueeze": _moved(lambda v, dim: np.expand_dims(v, dim)),
    "expand": _moved(_expand),
    "expand_as": _moved(lambda v, other: np.broadcast_to(v, (other.view if isinstance(other, Ref) else other).shape)),
    "view_as": _moved(lambda v, other: v.reshape((other.view if isinstance(other, Ref) else other).shape)),
    "reshape_as": _moved(lambda v, other: v.reshape((other.view if isinstance(other, Ref) else other).shape)),
    "type_as": _moved(lambda v, other: v),
    "roll": _moved(_roll),
    "flip": _moved(lambda v, dims: np.flip(v, dims)),
    "movedim": _moved(lambda v, a, b: np.moveaxis(v, a, b)),
    "repeat": _moved(lambda v, times: np.tile(v, times)),
    "repeat_interleave": _moved(_repeat_interleave),
    "index_select": _moved(lambda v, dim, index: v.take(index.numpy(), dim)),
    "pixel_shuffle": _moved(_pixel_shuffle),
    "stack": stack,
    "unbind": _parts(_unbind),
    "split": _parts(_split),
    "split_with_sizes": _parts(_split),
    "chunk": _parts(_chunk),
    "cat": cat,
    "im2col": im2col,
    "pad": pad,
    **{name: _moved(lambda v, *_, **__: v) for name in ("contiguous", "clone", "alias", "detach", "_to_copy", "to")},
    "dropout": _moved(lambda v, p, train: _still(v, train)),
    "feature_dropout": _moved(lambda v, p, train: _still(v, train)),
}


def _still(v: np.ndarray, train: bool) -> np.ndarray:
    if train:
        raise Unsupported("dropout in training mode")
    return v
