"""Verifies that each instruction set agrees with the portable kernels before it is used."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import warnings
from pathlib import Path

import numpy as np

from rankprune.engine.graph.graph import Graph, Node, Weight

from .choice import TALLEST, Choice
from .generated import jit_allowed
from .lowering import lower
from .native import ACTIVATIONS, cache_folder, library, variants
from .tuning import cpu_model

TOLERANCE = 1e-4


@functools.cache
def best_variant() -> str:
    """Return the fastest instruction set whose results agree with the portable kernels.

    That they agree is remembered in the cache folder for this library and CPU. That they do not is found out each time.
    """
    names = variants()
    for name in names[:-1]:
        known = _agreed(name)
        if known.exists():
            return name
        if agrees(name):
            with contextlib.suppress(OSError):  # then the next process checks again
                known.parent.mkdir(parents=True, exist_ok=True)
                known.touch()
            return name
        warnings.warn(f"the {name} kernels disagree with the portable ones on this CPU and are not used", stacklevel=2)
    return names[-1]


def _agreed(variant: str) -> Path:
    """The file that exists if the kernels of this library, and its generated code, have agreed on this CPU model."""
    hasher = hashlib.sha256(Path(library()._name).read_bytes())
    hasher.update(f"|{cpu_model()}|{variant}|{jit_allowed()}".encode())
    return cache_folder() / "checked" / hasher.hexdigest()[:32]


def agrees(variant: str) -> bool:
    """Whether small networks that use every kernel give the same results as with the portable kernels.

    Args:
        variant: The instruction set.

    Returns:
        True if they agree.
    """
    for graph, eight, choices in cases():
        want, got = (_run(graph, eight, name, choices) for name in ("portable", variant))
        if not all(np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True) for a, b in zip(want, got)):
            return False
    return True


def _run(graph: Graph, eight: bool, variant: str, choices: dict[int, Choice]) -> list[np.ndarray]:
    lowered = lower(graph, eight, variant, 1, choices)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((lowered.batch, *graph.shapes[v])).astype(np.float32) for v in graph.inputs]
    outputs = [np.empty((lowered.batch, *graph.shapes[v]), np.float32) for v in graph.outputs]
    lowered.program.run(
        [(x.ctypes.data, at, x.size) for x, (at, _) in zip(inputs, lowered.inputs)],
        [(y.ctypes.data, at, y.size) for y, (at, _) in zip(outputs, lowered.outputs)],
    )
    return outputs


def cases() -> list[tuple[Graph, bool, dict[int, Choice]]]:
    """Return small networks that use every kernel: the network, eight images at once or one, the kernels by node."""
    rng = np.random.default_rng(1)
    nets = [image_net(rng, rows) for rows in range(1, max(max(shapes.values()) for shapes in TALLEST.values()) + 1)]
    return [
        *((graph, eight, choices) for graph, choices in nets for eight in (False, True)),
        (joined_net(rng), False, dict.fromkeys(range(3), Choice(8, 4, lanes=16))),
        (token_net(rng), False, {0: Choice(1, 2)}),
    ]


def _sparse(rng: np.random.Generator, *shape: int) -> Weight:
    """A weight whose products have about the variance of its input, so that errors are compared with numbers near 1."""
    density = 0.4
    scale = (density * math.prod(shape[1:])) ** -0.5
    return Weight.of(scale * rng.standard_normal(shape) * (rng.random(shape) < density))


def image_net(rng: np.random.Generator, rows: int) -> tuple[Graph, dict[int, Choice]]:
    """Return a network on images that uses each convolution kernel of a height, and the kernels by node.

    Each kernel runs a strided convolution and one with a residual. Pooling, multiplication, mean, linear and softmax
    follow the sum of their results.

    Args:
        rng: Random numbers for the weights.
        rows: The height: rows that the kernels compute at once. It also selects the activations.

    Returns:
        The network and the kernels.
    """
    graph = Graph()
    x = graph.value((5, 2 * rows, 2 * rows + 1))
    graph.inputs = [x]
    choices: dict[int, Choice] = {}

    def add(op: str, inputs: list[int], shape: tuple[int, ...], **more: object) -> int:
        out = graph.value(shape)
        graph.nodes.append(Node(op, inputs, out, **more))  # type: ignore[arg-type]
        return out

    def active(activation: str) -> dict[str, object]:
        return {"activation": activation, "parameters": [0.5, 2.0]}

    def conv(inputs: list[int], channels: int, stride: int, activation: str, choice: Choice) -> int:
        sizes = {"stride": [stride] * 2, "padding": [1, 1], "dilation": [1, 1], "groups": 1}
        choices[len(graph.nodes)] = choice
        arrays = {"bias": rng.standard_normal(8).astype(np.float32)}
        weight = _sparse(rng, 8, channels, 3, 3)
        return add("conv", inputs, shape, attrs={**sizes, **active(activation)}, weight=weight, arrays=arrays)

    shape = (8, rows, rows + 1)
    signed = [name for name in ACTIVATIONS if name != "sqrt"]  # NaN would hide the other kernels' results in the sum
    kernels = [
        Choice(width, rows, block=3, lanes=lanes)
        for lanes, shapes in TALLEST.items()
        for width in shapes
        if rows <= shapes[width]
    ]
    kernels.append(Choice(8, rows, lanes=16))  # generated code
    total = None
    for number, choice in enumerate(kernels):
        a = conv([x], 5, 2, signed[(rows + 5 * number) % len(signed)], choice)
        b = conv([a, a], 8, 1, "relu", choice)
        total = b if total is None else add("add", [total, b], shape, attrs=active("none"))
    assert total is not None
    sizes = {"kernel": [3, 3], "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}
    c = add("pool", [total], shape, attrs={**sizes, "average": rows % 2, "count_pad": 0})
    d = add("mul", [c, total], shape, attrs=active(ACTIVATIONS[(rows + 14) % len(ACTIVATIONS)]))
    e = add("mean", [d], (8,))
    bias = {"bias": rng.standard_normal(16).astype(np.float32)}
    f = add("linear", [e], (16,), attrs={"activation": "none"}, weight=_sparse(rng, 16, 8), arrays=bias)
    graph.outputs = [total, add("softmax", [f], (16,))]
    return graph, choices


def joined_net(rng: np.random.Generator) -> Graph:
    """Return a network whose convolutions read images with joined rows where they lie.

    The second divides its input by a stride, the last has a residual, and a mean reads the result.

    Args:
        rng: Random numbers for the weights.

    Returns:
        The network.
    """
    graph = Graph([(5, 22, 19), (8, 22, 19), (8, 11, 10), (8, 11, 10), (8, 11, 10), (8,)], [], [0], [4, 5])
    sizes = {"kernel": [3, 3], "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}
    for inputs, out, stride in (([0], 1, 1), ([1], 2, 2), ([2, 2], 3, 1)):
        attrs = {key: sizes[key] for key in ("padding", "dilation")} | {"stride": [stride] * 2, "groups": 1}
        attrs |= {"activation": "relu", "parameters": [0.0, 0.0]}
        arrays = {"bias": rng.standard_normal(8).astype(np.float32)}
        weight = _sparse(rng, 8, graph.shapes[inputs[0]][0], 3, 3)
        graph.nodes.append(Node("conv", inputs, out, attrs=attrs, weight=weight, arrays=arrays))
    graph.nodes.append(Node("activation", [3], 4, attrs={"activation": "tanh", "parameters": [0.0, 0.0]}))
    graph.nodes.append(Node("mean", [4], 5))
    return graph


def token_net(rng: np.random.Generator) -> Graph:
    """Return a network on tokens: linear, attention, layer norm, product, softmax and gather.

    Args:
        rng: Random numbers for the weights.

    Returns:
        The network.
    """
    t = 53  # 32, 16 and 5 tokens: attention and products have a kernel for each
    shapes: list[tuple[int, ...]] = [(t, 12), (t, 36), (t, 12), (t, 12), (t, 2 * t), (t, 2 * t), (t, 2 * t)]
    graph = Graph(shapes, [], [0], [6])
    one = np.ones(12, np.float32)
    heads = {name: [0, at, 0, 0, 0, 6, 1, 0, 0, 1] for name, at in (("q", 0), ("k", 12), ("v", 24))}
    scale = {"scale": np.full((1, 1), 0.4, np.float32)}
    both = {name: [0, 0, 0, 0, 0, 6, 1, 0, 0, 1] for name in "ab"}
    mixed = rng.permutation(t * 2 * t).reshape(t, 2 * t).astype(np.int32)
    zeros = {"bias": np.zeros(36, np.float32)}
    graph.nodes = [
        Node("linear", [0], 1, attrs={"activation": "gelu"}, weight=_sparse(rng, 36, 12), arrays=zeros),
        Node("attention", [1, 1, 1], 2, attrs={**heads, "sizes": [1, 2, t, t, 6, 6], "stacked": 0}, arrays=scale),
        Node("layernorm", [2], 3, attrs={"eps": 1e-5}, arrays={"weight": one, "bias": one}),
        Node("product", [3, 3], 4, attrs={**both, "sizes": [1, 2, t, t, 6], "stacked": 0}),
        Node("softmax", [4], 5, attrs={"groups": 2}),
        Node("gather", [5], 6, arrays={"index": mixed}),
    ]
    return graph
