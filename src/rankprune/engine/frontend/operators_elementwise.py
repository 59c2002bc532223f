"""Handlers of elementwise operations on tensors, numbers and constants that broadcast. See `operators`.

They work on the value behind a view, in the value's own order, and return the result through the same view, so that no
numbers are moved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from rankprune.engine.graph.graph import Graph, Node, Unsupported

from .refs import IMAGES, Ref, materialized, pick

Handler = Callable[..., Any]
_REVERSED = {"sub": "rsub", "rsub": "sub", "div": "rdiv", "rdiv": "div"}


def unary(graph: Graph, x: Any, kind: str, *parameters: float) -> Ref:
    """Capture an activation of the whole value behind a view, unless the view is of a small part of it.

    Args:
        graph: The graph.
        x: The tensor.
        kind: The activation.
        *parameters: Up to two parameters.

    Returns:
        The result.

    Raises:
        Unsupported: `x` is not a computed tensor.
    """
    if not isinstance(x, Ref):
        raise Unsupported("an activation of something else than a tensor")
    if IMAGES * x.count > 2 * x.view.size:
        x = materialized(graph, x)
    attrs: dict[str, Any] = {"activation": kind}
    if parameters:
        attrs["parameters"] = [float(p) for p in (*parameters, 0.0)[:2]]
    return _same(graph, "activation", x, attrs=attrs)


def constant(graph: Graph, op: str, x: Ref, array: np.ndarray) -> Ref:
    """Capture an operation with a constant.

    Args:
        graph: The graph.
        op: The operation.
        x: The tensor.
        array: The constant, which broadcasts against the full shape including the batch.

    Returns:
        The result.

    Raises:
        Unsupported: The constant has NaN, or differs between images.
    """
    shape = np.broadcast_shapes(array.shape, x.view.shape)
    if np.isnan(array).any():
        raise Unsupported("a constant with NaN")
    x = Ref(x.value, np.broadcast_to(x.view, shape), x.count)
    if not _once(x):
        x = materialized(graph, x)
    full = np.full(IMAGES * x.count, np.nan, np.float32)  # NaN marks numbers that are not in the view
    full[x.view.reshape(-1)] = np.broadcast_to(array, shape).reshape(-1)
    first, second = full.reshape(IMAGES, -1)
    if not np.array_equal(first, second, equal_nan=True):
        raise Unsupported("a constant that differs between images")
    compact = _compact(first.reshape(graph.shapes[x.value]))
    return _same(graph, op, x, attrs={"activation": "none"}, arrays={"constant": compact})


def binary(graph: Graph, op: str, a: Ref, b: Ref) -> Ref:
    """Capture an operation of two computed tensors, in the order of one that has every number of the result once.

    Args:
        graph: The graph.
        op: The operation.
        a: The first tensor.
        b: The second tensor.

    Returns:
        The result.

    Raises:
        Unsupported: The tensors do not have the batch on the same axis.
    """
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
    """Append a node whose result has the order of its first operand."""
    output = graph.value(graph.shapes[x.value])
    graph.nodes.append(Node(op, [x.value, *(others or [])], output, **more))
    return replace(x, value=output)


def _once(x: Ref) -> bool:
    """Whether the view has no number twice, and at least half of the numbers."""
    if x.view.size > IMAGES * x.count or 2 * x.view.size < IMAGES * x.count:
        return False
    seen = np.zeros(IMAGES * x.count, bool)
    seen[x.view.reshape(-1)] = True
    return int(np.count_nonzero(seen)) == x.view.size


def _covers(x: Ref) -> bool:
    """Whether the view has every number exactly once."""
    return x.view.size == IMAGES * x.count and _once(x)


def _compact(array: np.ndarray) -> np.ndarray:
    """Reduce axes along which the array is constant to size 1; NaN matches anything."""
    low, high = (np.where(np.isnan(array), fill, array) for fill in (np.inf, -np.inf))
    for axis in range(array.ndim):
        if array.shape[axis] > 1:
            least, most = low.min(axis, keepdims=True), high.max(axis, keepdims=True)
            if (least >= most).all():
                low, high = least, most
    known = low <= high
    return np.ascontiguousarray(np.where(known, low, 0.0), np.float32)


def _unrepeated(index: np.ndarray) -> np.ndarray:
    """Reduce axes along which a view repeats the same numbers to size 1."""
    for axis in range(index.ndim):
        first = index.take([0], axis)
        if index.shape[axis] > 1 and (index == first).all():
            index = first
    return index


def number(value: Any) -> np.ndarray:
    """Convert a number or a constant tensor to float32.

    Args:
        value: The number or tensor.

    Returns:
        The array.
    """
    return np.asarray(value.detach().float().numpy() if isinstance(value, Tensor) else value, np.float32)


def operation(op: str) -> Handler:
    """Return the handler of an operation with two operands, each a computed tensor, a number or a constant.

    Args:
        op: The operation.

    Returns:
        The handler.
    """

    def handler(graph: Graph, a: Any, b: Any, *, alpha: float = 1, rounding_mode: Any = None) -> Ref:
        if rounding_mode is not None:
            raise Unsupported("a division that rounds")
        if isinstance(a, Ref) and isinstance(b, Ref):
            return binary(graph, op, a, b if alpha == 1 else constant(graph, "mul", b, number(alpha)))
        if isinstance(a, Ref):
            array = number(b) * np.float32(alpha)
            if op == "sub":
                return constant(graph, "add", a, -array)
            # Dividing by a power of two equals multiplying by its reciprocal; for others the rounding may differ.
            return constant(graph, "mul", a, 1 / array) if op == "div" else constant(graph, op, a, array)
        if alpha != 1:
            b = constant(graph, "mul", b, number(alpha))
        return constant(graph, _REVERSED.get(op, op), b, number(a))

    return handler


def _reversed(op: str) -> Handler:
    return lambda graph, a, b, **kwargs: operation(op)(graph, b, a, **kwargs)


def power(graph: Graph, x: Any, exponent: Any) -> Ref:
    """Capture a power with a small constant exponent.

    Args:
        graph: The graph.
        x: The base.
        exponent: One of 1, 2, 3, 0.5, -0.5, -1.

    Returns:
        The power.

    Raises:
        Unsupported: The exponent is another one.
    """
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


HANDLERS: dict[str, Handler] = {
    **{op: operation(op) for op in ("add", "mul", "sub", "div", "maximum", "minimum")},
    "rsub": _reversed("sub"),
    "pow": power,
    "square": lambda graph, x: power(graph, x, 2),
    "rsqrt": lambda graph, x: power(graph, x, -0.5),
    "reciprocal": lambda graph, x: power(graph, x, -1),
    "neg": lambda graph, x: constant(graph, "mul", x, np.float32(-1)),
}
