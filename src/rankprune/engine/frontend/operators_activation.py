"""Handlers of activations. See `operators`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from rankprune.engine.graph.graph import Graph, Unsupported

from .operators_elementwise import constant, number, unary
from .refs import Ref

Handler = Callable[..., Any]
_LARGEST = float(np.finfo(np.float32).max)


def activation(kind: str) -> Handler:
    """Return the handler of an activation without parameters.

    Args:
        kind: The activation.

    Returns:
        The handler.
    """
    return lambda graph, x: unary(graph, x, kind)


def gelu(graph: Graph, x: Any, approximate: str = "none", **more: Any) -> Ref:
    """Capture a GELU.

    Args:
        graph: The graph.
        x: The tensor.
        approximate: "none" or "tanh".
        **more: May hold `approximate`.

    Returns:
        The result.
    """
    return unary(graph, x, "gelu_tanh" if more.get("approximate", approximate) == "tanh" else "gelu")


def clamp(graph: Graph, x: Any, low: Any = None, high: Any = None) -> Ref:
    """Capture a clamp.

    Args:
        graph: The graph.
        x: The tensor.
        low: Lower bound, or None.
        high: Upper bound, or None.

    Returns:
        The result.

    Raises:
        Unsupported: A bound is a tensor.
    """
    if any(isinstance(bound, (Ref, Tensor)) for bound in (low, high)):
        raise Unsupported("a clamp by tensors")
    low = -_LARGEST if low is None else max(-_LARGEST, float(low))
    high = _LARGEST if high is None else min(_LARGEST, float(high))
    return unary(graph, x, "relu6") if (low, high) == (0.0, 6.0) else unary(graph, x, "clamp", low, high)


def hardtanh(graph: Graph, x: Any, low: float = -1.0, high: float = 1.0) -> Ref:
    """Capture a hardtanh, as a clamp.

    Args:
        graph: The graph.
        x: The tensor.
        low: Lower bound.
        high: Upper bound.

    Returns:
        The result.
    """
    return clamp(graph, x, low, high)


def elu(graph: Graph, x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Ref:
    """Capture an ELU.

    Args:
        graph: The graph.
        x: The tensor.
        alpha: Factor of the negative part.
        scale: Factor of the result.
        input_scale: Factor of the input of the negative part.

    Returns:
        The result.
    """
    result = unary(graph, x, "elu", alpha, input_scale)
    return result if scale == 1 else constant(graph, "mul", result, np.float32(scale))


def selu(graph: Graph, x: Any) -> Ref:
    """Capture a SELU.

    Args:
        graph: The graph.
        x: The tensor.

    Returns:
        The result.
    """
    return elu(graph, x, 1.6732632423543772, 1.0507009873554805)


def softplus(graph: Graph, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Ref:
    """Capture a softplus.

    Args:
        graph: The graph.
        x: The tensor.
        beta: Factor of the input.
        threshold: Above it the function is linear.

    Returns:
        The result.
    """
    return unary(graph, x, "softplus", beta, threshold)


def prelu(graph: Graph, x: Any, weight: Any) -> Ref:
    """Capture a PReLU.

    Args:
        graph: The graph.
        x: [batch, channels, ...].
        weight: One slope, or one per channel.

    Returns:
        The result.

    Raises:
        Unsupported: The slopes are computed.
    """
    if not isinstance(x, Ref) or not isinstance(weight, Tensor):
        raise Unsupported("a PReLU by a computed slope")
    slopes = number(weight)
    return constant(graph, "prelu", x, slopes if slopes.size == 1 else slopes.reshape(-1, *[1] * (x.view.ndim - 2)))


_PLAIN = ("relu", "relu6", "hardswish", "sigmoid", "silu", "hardsigmoid", "tanh", "mish", "exp", "sqrt", "abs")
HANDLERS: dict[str, Handler] = {
    **{kind: activation(kind) for kind in _PLAIN},
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
