"""Activations, and sums, products and the like of tensors, numbers and constants that broadcast.

They work on the value a view looks at, in the order in which it lies, and the result is seen through the same view: no
number is moved for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from rankprune.engine.graph.graph import Graph, Node, Unsupported

from .refs import IMAGES, Ref, materialized, pick

Handler = Callable[..., Any]
_REVERSED = {"sub": "rsub", "rsub": "sub", "div": "rdiv", "rdiv": "div"}
_LARGEST = float(np.finfo(np.float32).max)


def unary(graph: Graph, x: Any, kind: str, *parameters: float) -> Ref:
    """An activation of every number of the value behind the view, unless the view is of a small part of it."""
    if not isinstance(x, Ref):
        raise Unsupported("an activation of something else than a tensor")
    if IMAGES * x.count > 2 * x.view.size:
        x = materialized(graph, x)
    attrs: dict[str, Any] = {"activation": kind}
    if parameters:
        attrs["parameters"] = [float(p) for p in (*parameters, 0.0)[:2]]
    return _same(graph, "activation", x, attrs=attrs)


def constant(graph: Graph, op: str, x: Ref, array: np.ndarray) -> Ref:
    """With a constant that broadcasts against the full shape, batch axis included."""
    shape = np.broadcast_shapes(array.shape, x.view.shape)
    if np.isnan(array).any():
        raise Unsupported("a constant with NaN")
    x = Ref(x.value, np.broadcast_to(x.view, shape), x.count)
    if not _once(x):
        x = materialized(graph, x)
    full = np.full(IMAGES * x.count, np.nan, np.float32)  # NaN: a number that the view does not show
    full[x.view.reshape(-1)] = np.broadcast_to(array, shape).reshape(-1)
    first, second = full.reshape(IMAGES, -1)
    if not np.array_equal(first, second, equal_nan=True):
        raise Unsupported("a constant that differs between images")
    held = _compact(first.reshape(graph.shapes[x.value]))
    return _same(graph, op, x, attrs={"activation": "none"}, arrays={"constant": held})


def binary(graph: Graph, op: str, a: Ref, b: Ref) -> Ref:
    """Of two computed tensors: in the order of the one that has every number of the result once."""
    shape = np.broadcast_shapes(a.view.shape, b.view.shape)
    a, b = (Ref(r.value, np.broadcast_to(r.view, shape), r.count) for r in (a, b))
    if not _covers(a):
        if _covers(b):
            a, b, op = b, a, _REVERSED.get(op, op)
        else:
            a = materialized(graph, a)
    other = np.empty(IMAGES * a.count, np.int64)
    other[a.view.reshape(-1)] = b.view.reshape(-1)
    first, second = other.reshape(IMAGES, -1)
    if (second - first != b.count).any() or first.max() >= b.count:
        raise Unsupported("two tensors that do not have the batch on the same axis")
    index = first.reshape(graph.shapes[a.value])
    if np.array_equal(first, np.arange(first.size)) and graph.shapes[b.value] == index.shape:
        return _same(graph, op, a, [b.value], attrs={"activation": "none"})
    attrs: dict[str, Any] = {"activation": "none"}
    if index.ndim <= 3:
        index = _unrepeated(index)
    if index.shape == graph.shapes[a.value]:
        return _same(graph, op, a, [pick(graph, b.value, index)], attrs=attrs)
    attrs["broadcast"] = list(index.shape)
    flat = index.reshape(-1)
    whole = np.array_equal(flat, np.arange(flat.size)) and flat.size == b.count
    return _same(graph, op, a, [b.value if whole else pick(graph, b.value, flat)], attrs=attrs)


def _same(graph: Graph, op: str, x: Ref, others: list[int] | None = None, **more: Any) -> Ref:
    """A node whose result lies as its first operand does."""
    output = graph.value(graph.shapes[x.value])
    graph.nodes.append(Node(op, [x.value, *(others or [])], output, **more))
    return Ref(output, x.view, x.count)


def _once(x: Ref) -> bool:
    """Whether the view shows no number twice, and most of them."""
    if x.view.size > IMAGES * x.count or 2 * x.view.size < IMAGES * x.count:
        return False
    seen = np.zeros(IMAGES * x.count, bool)
    seen[x.view.reshape(-1)] = True
    return int(np.count_nonzero(seen)) == x.view.size


def _covers(x: Ref) -> bool:
    """Whether the view shows every number once."""
    return x.view.size == IMAGES * x.count and _once(x)


def _compact(array: np.ndarray) -> np.ndarray:
    """Size 1 along the axes where it is constant; NaN is anything."""
    low, high = (np.where(np.isnan(array), fill, array) for fill in (np.inf, -np.inf))
    for axis in range(array.ndim):
        if array.shape[axis] > 1:
            least, most = low.min(axis, keepdims=True), high.max(axis, keepdims=True)
            if (least >= most).all():
                low, high = least, most
    known = low <= high
    return np.ascontiguousarray(np.where(known, low, 0.0), np.float32)


def _unrepeated(index: np.ndarray) -> np.ndarray:
    """Size 1 along the axes where a view repeats the same numbers."""
    for axis in range(index.ndim):
        first = index.take([0], axis)
        if index.shape[axis] > 1 and (index == first).all():
            index = first
    return index


def _number(value: Any) -> np.ndarray:
    return np.asarray(value.detach().float().numpy() if isinstance(value, Tensor) else value, np.float32)


def operation(op: str) -> Handler:
    def handler(graph: Graph, a: Any, b: Any, *, alpha: float = 1, rounding_mode: Any = None) -> Ref:
        if rounding_mode is not None:
            raise Unsupported("a division that rounds")
        if isinstance(a, Ref) and isinstance(b, Ref):
            return binary(graph, op, a, b if alpha == 1 else constant(graph, "mul", b, _number(alpha)))
        if isinstance(a, Ref):
            array = _number(b) * np.float32(alpha)
            if op == "sub":
                return constant(graph, "add", a, -array)
            # A power of two divides exactly as its reciprocal multiplies; others differ by one rounding.
            return constant(graph, "mul", a, 1 / array) if op == "div" else constant(graph, op, a, array)
        if alpha != 1:
            b = constant(graph, "mul", b, _number(alpha))
        return constant(graph, _REVERSED.get(op, op), b, _number(a))

    return handler


def _reversed(op: str) -> Handler:
    return lambda graph, a, b, **kwargs: operation(op)(graph, b, a, **kwargs)


def power(graph: Graph, x: Any, exponent: Any) -> Ref:
    known: dict[float, Callable[[], Ref]] = {
        1.0: lambda: unary(graph, x, "none"),
        2.0: lambda: binary(graph, "mul", x, x),
        0.5: lambda: unary(graph, x, "sqrt"),
        -0.5: lambda: constant(graph, "rdiv", unary(graph, x, "sqrt"), np.float32(1)),
        -1.0: lambda: constant(graph, "rdiv", x, np.float32(1)),
        3.0: lambda: binary(graph, "mul", binary(graph, "mul", x, x), x),
    }
    if not isinstance(x, Ref) or not isinstance(exponent, (int, float)) or float(exponent) not in known:
        raise Unsupported("a power that is not a small one")
    return known[float(exponent)]()


def activation(kind: str) -> Handler:
    return lambda graph, x: unary(graph, x, kind)


def gelu(graph: Graph, x: Any, approximate: str = "none", **more: Any) -> Ref:
    return unary(graph, x, "gelu_tanh" if more.get("approximate", approximate) == "tanh" else "gelu")


def clamp(graph: Graph, x: Any, low: Any = None, high: Any = None) -> Ref:
    if any(isinstance(bound, (Ref, Tensor)) for bound in (low, high)):
        raise Unsupported("a clamp by tensors")
    low = -_LARGEST if low is None else max(-_LARGEST, float(low))
    high = _LARGEST if high is None else min(_LARGEST, float(high))
    return unary(graph, x, "relu6") if (low, high) == (0.0, 6.0) else unary(graph, x, "clamp", low, high)


def hardtanh(graph: Graph, x: Any, low: float = -1.0, high: float = 1.0) -> Ref:
    return clamp(graph, x, low, high)


def elu(graph: Graph, x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Ref:
    made = unary(graph, x, "elu", alpha, input_scale)
    return made if scale == 1 else constant(graph, "mul", made, np.float32(scale))


def selu(graph: Graph, x: Any) -> Ref:
    return elu(graph, x, 1.6732632423543772, 1.0507009873554805)


def softplus(graph: Graph, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Ref:
    return unary(graph, x, "softplus", beta, threshold)


def prelu(graph: Graph, x: Any, weight: Any) -> Ref:
    """A slope for each channel of axis 1, or one for all."""
    if not isinstance(x, Ref) or not isinstance(weight, Tensor):
        raise Unsupported("a PReLU by a computed slope")
    slopes = _number(weight)
    return constant(graph, "prelu", x, slopes if slopes.size == 1 else slopes.reshape(-1, *[1] * (x.view.ndim - 2)))


_PLAIN = ("relu", "relu6", "hardswish", "sigmoid", "silu", "hardsigmoid", "tanh", "mish", "exp", "sqrt", "abs")
HANDLERS: dict[str, Handler] = {
    **{op: operation(op) for op in ("add", "mul", "sub", "div", "maximum", "minimum")},
    **{kind: activation(kind) for kind in _PLAIN},
    "rsub": _reversed("sub"),
    "pow": power,
    "square": lambda graph, x: power(graph, x, 2),
    "rsqrt": lambda graph, x: power(graph, x, -0.5),
    "reciprocal": lambda graph, x: power(graph, x, -1),
    "neg": lambda graph, x: constant(graph, "mul", x, np.float32(-1)),
    "gelu": gelu,
    "clamp": clamp,
    "clamp_min": lambda graph, x, low: clamp(graph, x, low),
    "clamp_max": lambda graph, x, high: clamp(graph, x, None, high),
    "hardtanh": hardtanh,
    "elu": elu,
    "selu": selu,
    "celu": lambda graph, x, alpha=1.0: elu(graph, x, alpha, 1.0, 1 / alpha),
    "leaky_relu": lambda graph, x, slope=0.01: unary(graph, x, "leaky_relu", slope),
    "softplus": softplus,
    "prelu": prelu,
}
