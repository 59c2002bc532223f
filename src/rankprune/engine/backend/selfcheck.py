"""Verifies that each instruction set agrees with the portable kernels before it is used."""

from __future__ import annotations

import functools
import warnings

import numpy as np

from rankprune.engine.graph.graph import Graph, Node, Weight

from .lowering import lower
from .native import ACTIVATIONS, variants
from .packing import TALLEST, Choice

TOLERANCE = 1e-4


@functools.cache
def best_variant() -> str:
    """Return the fastest instruction set whose results agree with the portable kernels."""
    found = variants()
    for name in found[:-1]:
        if agrees(name):
            return name
        warnings.warn(f"the {name} kernels disagree with the portable ones on this CPU and are not used", stacklevel=2)
    return found[-1]


def agrees(variant: str) -> bool:
    """Whether small networks that use every kernel give the same results as with the portable kernels.

    Args:
        variant: The instruction set.

    Returns:
        True if they agree.
    """
    for graph, eight, choice in _cases():
        choices = {i: choice for i, node in enumerate(graph.nodes) if node.weight is not None}
        want, got = (_run(graph, eight, name, choices) for name in ("portable", variant))
        if not np.allclose(want, got, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            return False
    return True


def _run(graph: Graph, eight: bool, variant: str, choices: dict[int, Choice]) -> np.ndarray:
    made = lower(graph, eight, variant, 1, choices)
    shape, out = graph.shapes[graph.inputs[0]], graph.shapes[graph.outputs[0]]
    x = np.random.default_rng(0).standard_normal((made.batch, *shape)).astype(np.float32)
    y = np.empty((made.batch, *out), np.float32)
    made.program.run([(x.ctypes.data, made.inputs[0][0], x.size)], [(y.ctypes.data, made.outputs[0][0], y.size)])
    return y


def _cases() -> list[tuple[Graph, bool, Choice]]:
    rng = np.random.default_rng(1)
    cases = []
    for lanes, shapes in TALLEST.items():
        for width, tallest in shapes.items():
            for height in range(1, tallest + 1):
                choice = Choice(width, height, block=3, lanes=lanes)
                cases += [(_image_net(rng, height), eight, choice) for eight in (False, True)]
    return [*cases, (_token_net(rng), False, Choice(1, 2))]


def _sparse(rng: np.random.Generator, *shape: int) -> Weight:
    return Weight.of(rng.standard_normal(shape) * (rng.random(shape) < 0.4))


def _image_net(rng: np.random.Generator, rows: int) -> Graph:
    """A network of strided convolution, residual, pooling, mean and linear; `rows` selects the activation."""
    graph = Graph()
    x = graph.value((5, 2 * rows, 2 * rows + 1))
    graph.inputs = [x]

    def add(op: str, inputs: list[int], shape: tuple[int, ...], **more: object) -> int:
        out = graph.value(shape)
        graph.nodes.append(Node(op, inputs, out, **more))  # type: ignore[arg-type]
        return out

    def window(stride: int, activation: str) -> dict[str, object]:
        sizes = {"stride": [stride] * 2, "padding": [1, 1], "dilation": [1, 1], "groups": 1}
        return {**sizes, "activation": activation, "parameters": [0.5, 2.0]}

    def bias(n: int) -> dict[str, np.ndarray]:
        return {"bias": rng.standard_normal(n).astype(np.float32)}

    shape = (8, rows, rows + 1)
    kind, other = (ACTIVATIONS[n % len(ACTIVATIONS)] for n in (rows, rows + 14))
    a = add("conv", [x], shape, attrs=window(2, kind), weight=_sparse(rng, 8, 5, 3, 3), arrays=bias(8))
    b = add("conv", [a, a], shape, attrs=window(1, "relu"), weight=_sparse(rng, 8, 8, 3, 3), arrays=bias(8))
    sizes = {"kernel": [3, 3], "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}
    pool = {**sizes, "average": rows % 2, "count_pad": 0}
    c = add("pool", [b], shape, attrs=pool)
    d = add("mul", [c, b], shape, attrs={"activation": other, "parameters": [0.5, 2.0]})
    e = add("mean", [d], (8,))
    f = add("linear", [e], (16,), attrs={"activation": "none"}, weight=_sparse(rng, 16, 8), arrays=bias(16))
    graph.outputs = [add("softmax", [f], (16,))]
    return graph


def _token_net(rng: np.random.Generator) -> Graph:
    shapes: list[tuple[int, ...]] = [(11, 12), (11, 36), (11, 12), (11, 12), (11, 22), (11, 22), (11, 22)]
    graph = Graph(shapes, [], [0], [6])
    one = np.ones(12, np.float32)
    heads = {name: [0, at, 0, 0, 0, 6, 1, 0, 0, 1] for name, at in (("q", 0), ("k", 12), ("v", 24))}
    scale = {"scale": np.full((1, 1), 0.4, np.float32)}
    both = {name: [0, 0, 0, 0, 0, 6, 1, 0, 0, 1] for name in "ab"}
    mixed = rng.permutation(11 * 22).reshape(11, 22).astype(np.int32)
    zeros = {"bias": np.zeros(36, np.float32)}
    graph.nodes = [
        Node("linear", [0], 1, attrs={"activation": "gelu"}, weight=_sparse(rng, 36, 12), arrays=zeros),
        Node("attention", [1, 1, 1], 2, attrs={**heads, "sizes": [1, 2, 11, 11, 6, 6], "stacked": 0}, arrays=scale),
        Node("layernorm", [2], 3, attrs={"eps": 1e-5}, arrays={"weight": one, "bias": one}),
        Node("product", [3, 3], 4, attrs={**both, "sizes": [1, 2, 11, 11, 6], "stacked": 0}),
        Node("softmax", [4], 5, attrs={"groups": 2}),
        Node("gather", [5], 6, arrays={"index": mixed}),
    ]
    return graph
