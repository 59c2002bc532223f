"""Saved plans that are cut short, changed, or from another version: one sentence, never a crash."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rankprune.engine import planfile
from rankprune.engine.backend.choice import Choice, KernelPlan
from rankprune.engine.backend.engine import Engine
from rankprune.engine.backend.native import ACTIVATIONS, OPERATIONS
from rankprune.engine.graph import strided
from rankprune.engine.graph.graph import Graph, Node, Unsupported, Weight
from rankprune.engine.graph.operator_table import OPERATORS
from rankprune.engine.graph.validate import check


def network() -> Graph:
    """One of everything the file can hold."""
    rng = np.random.default_rng(0)
    graph = Graph()
    x = graph.value((3, 9, 9))
    graph.inputs = [x]

    def add(op, inputs, shape, **more):
        out = graph.value(shape)
        graph.nodes.append(Node(op, inputs, out, op, **more))
        return out

    def bias(n):
        return {"bias": rng.standard_normal(n).astype(np.float32)}

    def weight(*shape):
        return Weight.of(rng.standard_normal(shape) * (rng.random(shape) < 0.4))

    window = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "activation": "relu"}
    a = add("conv", [x], (4, 9, 9), attrs=window, weight=weight(4, 3, 3, 3), arrays=bias(4))
    b = add("conv", [a, a], (4, 9, 9), attrs=window, weight=weight(4, 4, 3, 3), arrays=bias(4))
    pool = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "average": 1, "count_pad": 0}
    c = add("pool", [b], (4, 5, 5), attrs=pool)
    d = add("concat", [c, c], (8, 5, 5), attrs={"axis": 0})
    e = add(
        "gather",
        [d],
        (26, 8),
        arrays={
            "index": np.concatenate([np.full((1, 8), -1), np.arange(200).reshape(8, 25).T]).astype(np.int32),
            "constant": np.ones(1, np.float32),
        },
    )
    f = add("layernorm", [e], (26, 8), attrs={"eps": 1e-5}, arrays={"weight": np.ones(8, np.float32), **bias(8)})
    g = add("linear", [f], (26, 24), attrs={"activation": "gelu"}, weight=weight(24, 8), arrays=bias(24))
    heads = {name: [0, at, 0, 0, 0, 4, 1, 0, 0, 1] for name, at in (("q", 0), ("k", 8), ("v", 16))}
    fixed = {"scale": np.full((1, 2), 0.5, np.float32), "bias": rng.standard_normal((1, 1, 26, 26)).astype(np.float32)}
    h = add("attention", [g, g, g], (26, 8), attrs={**heads, "sizes": [1, 2, 26, 26, 4, 4], "stacked": 0}, arrays=fixed)
    scores = {"a": heads["q"], "b": heads["k"], "sizes": [1, 2, 26, 26, 4], "stacked": 0}
    s = add("product", [g, g], (26, 52), attrs=scores)
    s = add("softmax", [s], (26, 52), attrs={"groups": 2})
    rows = strided.to_array(strided.describe(np.arange(26 * 52).reshape(26, 52)[:, :8], np.arange(26 * 8)))
    s = add("gather", [s], (26, 8), arrays={"nests": rows})
    h = add("add", [h, s], (26, 8), attrs={"activation": "none"})
    i = add("add", [h, e], (26, 8), attrs={"activation": "none"})
    j = add("mul", [i], (26, 8), attrs={"activation": "sigmoid"}, arrays={"constant": np.full((26, 8), 2, np.float32)})
    j = add("sub", [j, j], (26, 8), attrs={"activation": "elu", "parameters": [0.5, 2.0]})
    j = add("div", [i, f], (26, 8), attrs={"activation": "clamp", "parameters": [-3.0, 3.0], "broadcast": [26, 8]})
    k = add("mean", [j], (8,))
    j = add("add", [j, k], (26, 8), attrs={"activation": "tanh", "broadcast": [1, 8]})
    k = add("mean", [j], (8,))
    m = add("linear", [k], (5,), attrs={"activation": "none"}, weight=weight(5, 8), arrays=bias(5))
    graph.outputs = [add("softmax", [m], (5,))]
    return graph


def elementwise() -> Graph:
    """Every operation of two values: with a constant, with another value and with a smaller one; then an activation."""
    graph = Graph([(3, 4, 5), (3,)], [], [0, 1])
    last = 0
    for i, op in enumerate(OPERATIONS):
        plain, constant = {"activation": ACTIVATIONS[i % len(ACTIVATIONS)]}, {"constant": np.full((3, 1, 5), 2, np.float32)}
        more = [{"arrays": constant, "attrs": plain}, {"attrs": plain}, {"attrs": {**plain, "broadcast": [3, 1, 1]}}]
        for inputs, rest in zip(([last], [last, 0], [last, 1]), more):
            last = graph.value((3, 4, 5))
            graph.nodes.append(Node(op, [last - 1 if last > 2 else 0, *inputs[1:]], last, op, **rest))
    attrs = {"activation": "leaky_relu", "parameters": [0.1, 0.0]}
    graph.nodes.append(Node("activation", [last], graph.value((3, 4, 5)), "a", attrs))
    graph.outputs = [last + 1]
    return graph


def test_these_networks_have_every_operator():
    """The fuzzing (`test_fuzz.py`) damages plans of them: add a new operator to one."""
    assert {node.op for graph in (network(), elementwise()) for node in graph.nodes} == set(OPERATORS)
    check(elementwise())


def saved(tmp_path) -> bytes:
    planfile.write(tmp_path / "net.plan", network(), KernelPlan({0: Choice(1, 5, 2)}, {}), True)
    return (tmp_path / "net.plan").read_bytes()


def run(data: bytes) -> np.ndarray | None:
    """The result of a plan, or None if it was refused in one sentence."""
    try:
        graph, kernels, eight = planfile.parse(data)
        engine = Engine(graph, 1, kernels, eight=eight)
    except (planfile.DamagedPlan, Unsupported) as error:
        if "\n" in str(error) or len(str(error)) > 300:
            raise
        return None
    return engine([np.ones((1, *graph.shapes[v]), np.float32) for v in graph.inputs])[0]


def test_a_plan_comes_back(tmp_path):
    data = saved(tmp_path)
    want = Engine(network(), 1)([np.ones((1, 3, 9, 9), np.float32)])[0]
    np.testing.assert_allclose(run(data), want, rtol=1e-5)
    assert planfile.parse(data).kernels.one == {0: Choice(1, 5, 2)}
    assert planfile.parse(data).eight


def test_what_could_not_be_read_is_not_written(tmp_path):
    with pytest.raises(ValueError, match=r"net\.plan is not written, because it is not a sound plan .*268435456"):
        planfile.write(tmp_path / "net.plan", Graph([(1 << 28,)], [], [0], [0]), KernelPlan({}, {}), True)
    assert not list(tmp_path.iterdir())


def test_cut_short_flipped_or_newer(tmp_path):
    data = saved(tmp_path)
    rng = random.Random(0)
    for _ in range(150):
        assert run(data[: rng.randrange(len(data))]) is None
    for _ in range(150):
        broken = bytearray(data)
        broken[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        assert run(bytes(broken)) is None
    newer = bytearray(data)
    newer[8:12] = (5).to_bytes(4, "little")
    with pytest.raises(planfile.DamagedPlan, match="version 5, this package reads 4"):
        planfile.parse(bytes(newer))
    (tmp_path / "short").write_bytes(data[:-1])
    with pytest.raises(planfile.DamagedPlan, match="short is damaged or cut short"):
        planfile.read(tmp_path / "short")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        planfile.read(tmp_path / "absent")
