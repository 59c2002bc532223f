"""Random small convolutions over all parameters and both layouts, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from rankprune.engine.backend.choice import Choice
from rankprune.engine.backend.direct import direct_window
from rankprune.engine.backend.joined import joined_values
from rankprune.engine.backend.layout import Layout
from rankprune.engine.backend.lowering import lower
from rankprune.engine.backend.native import ACTIVATIONS, variants
from rankprune.engine.backend.window_layout import among_planes
from rankprune.engine.graph.graph import Graph, Node, Unsupported, Weight
from rankprune.engine.graph.limits import Limits, Meter

TORCH = {
    "none": lambda x: x, "relu": F.relu, "relu6": F.relu6, "hardswish": F.hardswish, "gelu": F.gelu,
    "sigmoid": torch.sigmoid, "silu": F.silu, "hardsigmoid": F.hardsigmoid,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "tanh": torch.tanh, "mish": F.mish, "abs": torch.abs,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1), "elu": lambda x: torch.where(x < 0, 0.1 * torch.expm1(3 * x), x),
    "softplus": lambda x: F.softplus(x, 0.1, 3.0), "clamp": lambda x: x.clamp(0.1, 3.0),
}  # fmt: skip


def run(
    graph: Graph, images: bool, choice: Choice, x: np.ndarray, threads: int = 1, variant: str | None = None,
    joined: frozenset[int] | None = None,
) -> np.ndarray:  # fmt: skip
    choices = dict.fromkeys(range(len(graph.nodes)), choice)
    made = lower(graph, images, variant or variants()[0], threads, choices, joined=joined)
    out = graph.shapes[graph.outputs[0]]
    y = np.full((made.batch, *out), np.nan, np.float32)
    x = np.ascontiguousarray(x[: made.batch])
    made.program.run([(x.ctypes.data, made.inputs[0][0], x.size)], [(y.ctypes.data, made.outputs[0][0], y.size)])
    return y


@st.composite
def problems(draw):
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    inputs, outputs = groups * draw(st.integers(1, 5)), groups * draw(st.sampled_from([1, 2, 3, 4, 8, 17, 33]))
    if draw(st.booleans()) and draw(st.booleans()):
        groups = inputs = outputs = draw(st.integers(1, 9))  # depthwise
    kernel = [draw(st.integers(1, 5)), draw(st.integers(1, 5))]
    stride = [draw(st.integers(1, 3)), draw(st.integers(1, 3))]
    dilation = [draw(st.integers(1, 2)), draw(st.integers(1, 2))]
    padding = [draw(st.integers(0, 3)), draw(st.integers(0, 3))]
    size = [draw(st.integers(max(1, d * (k - 1) + 1 - 2 * p), 21)) for d, k, p in zip(dilation, kernel, padding)]
    density = draw(st.sampled_from([0.0, 0.02, 0.3, 0.7, 1.0]))
    width = draw(st.sampled_from([1, 2, 4, 8, 30]))  # more than 4: generated code
    choice = Choice(
        width, draw(st.integers(1, 16)), draw(st.integers(0, 4)), draw(st.booleans()), draw(st.sampled_from([8, 16]))
    )
    return {
        "groups": groups, "inputs": inputs, "outputs": outputs, "kernel": kernel, "stride": stride, "dilation": dilation,
        "padding": padding, "size": size, "density": density, "choice": choice, "seed": draw(st.integers(0, 99)),
        "activation": draw(st.sampled_from(sorted(TORCH))), "residual": draw(st.booleans()),
        "before": draw(st.sampled_from(["nothing", "relu", "conv"])), "threads": draw(st.sampled_from([1, 2])), "variant": draw(st.sampled_from(variants())),
    }  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(problems(), st.sampled_from(["images", "slabs", "joined"]))
def test_convolution_is_torch_s(p, layout):
    rng = np.random.default_rng(p["seed"])
    shape = (p["outputs"], p["inputs"] // p["groups"], *p["kernel"])
    weight = (rng.standard_normal(shape) * (rng.random(shape) < p["density"])).astype(np.float32)
    weight[rng.integers(p["outputs"])] = 0  # an output without any weight
    bias = rng.standard_normal(p["outputs"]).astype(np.float32)
    x = torch.from_numpy(rng.standard_normal((8, p["inputs"], *p["size"])).astype(np.float32))
    mix = rng.standard_normal((p["inputs"], p["inputs"], 1, 1)).astype(np.float32) * 0.5
    source = F.relu(x) if p["before"] == "relu" else F.conv2d(x, torch.from_numpy(mix)) if p["before"] == "conv" else x
    want = F.conv2d(
        source, torch.from_numpy(weight), torch.from_numpy(bias), p["stride"], p["padding"], p["dilation"], p["groups"]
    )
    graph = Graph([tuple(x.shape[1:])], [], [0])
    at = 0
    if p["before"] == "relu":  # so that the input lies in the engine's own layout
        at = graph.value(tuple(x.shape[1:]))
        graph.nodes.append(Node("activation", [0], at, attrs={"activation": "relu"}))
    elif p["before"] == "conv":  # ... or where this convolution wants it
        at = graph.value(tuple(x.shape[1:]))
        plain = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "activation": "none"}
        zeros = np.zeros(p["inputs"], np.float32)
        graph.nodes.append(Node("conv", [0], at, attrs=plain, weight=Weight.of(mix), arrays={"bias": zeros}))
    out = graph.value(tuple(want.shape[1:]))
    attrs = {k: p[k] for k in ("stride", "padding", "dilation", "groups", "activation")} | {"parameters": [0.1, 3.0]}
    inputs = [at]
    if p["residual"] and want.shape == x.shape:
        inputs.append(at)
        want = want + source
    graph.nodes.append(Node("conv", inputs, out, attrs=attrs, weight=Weight.of(weight), arrays={"bias": bias}))
    graph.outputs = [out]
    want = TORCH[p["activation"]](want).numpy()
    joined = frozenset(range(len(graph.shapes)) if layout == "joined" else ())
    got = run(graph, layout == "images", p["choice"], x.numpy(), p["threads"], p["variant"], joined)
    np.testing.assert_allclose(got, want[: len(got)], rtol=1e-4, atol=2e-5)


def block(density: float, last: str = "activation", size: int = 28) -> Graph:
    """A 3x3 convolution with stride 2, a 1x1 convolution, and one more operator."""
    graph = Graph()
    x, a, b, c = (graph.value(s) for s in ((96, 2 * size, 2 * size), *[(96, size, size)] * 3))
    graph.inputs, graph.outputs = [x], [c]
    rng = np.random.default_rng(0)
    for value, kernel, made in ((x, 3, a), (a, 1, b)):
        weight = rng.standard_normal((96, 96, kernel, kernel)) * (rng.random((96, 96, kernel, kernel)) < density)
        attrs = {"stride": [kernel // 2 + 1] * 2, "padding": [kernel // 2] * 2, "dilation": [1, 1], "groups": 1}
        node = Node("conv", [value], made, attrs=attrs | {"activation": "relu"}, weight=Weight.of(np.float32(weight)))
        node.arrays["bias"] = np.zeros(96, np.float32)
        graph.nodes.append(node)
    window = {"kernel": [3, 3], "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "average": 0, "count_pad": 0}
    attrs = {"activation": {"activation": "relu"}, "pool": window, "mean": {}}[last]
    if last == "mean":
        graph.shapes[c] = (96,)
    graph.nodes.append(Node(last, [b], c, attrs=attrs))
    return graph


@pytest.mark.parametrize(
    ("graph", "jit", "joined"),
    [
        (block(0.9), True, {1, 2, 3}),  # 49 vectors instead of 56 for 8294 weights; 96 x 56 vectors to copy
        (block(0.1), False, set()),  # too few weights for the copies
        (block(0.1), True, {1, 2, 3}),  # generated code needs none
        (block(0.1, "pool"), True, set()),  # pooling reads slabs
        (block(0.1, "mean"), True, {1, 2}),  # a mean reads either
        (block(0.9, size=32), True, set()),  # slabs leave no lane empty
    ],
)
def test_which_images_have_their_rows_joined(graph, jit, joined):
    assert joined_values(graph, 16, jit) == joined


def test_a_window_that_reads_its_input_where_it_lies():
    graph = Graph([(2, 7, 9), (3, 7, 9)])
    attrs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    weight = np.zeros((3, 2, 3, 3), np.float32)
    weight[0, 0] = 1
    node = Node("conv", [0], 1, attrs=attrs, weight=Weight.of(weight))
    assert direct_window(graph, node, 16, jit=False) is None
    assert direct_window(graph, node, 16, jit=True) is None  # 63 pixels: too small
    graph.shapes = [(2, 8, 9), (3, 8, 9)]
    window = direct_window(graph, node, 16, jit=True)
    assert window.taps.tolist() == [[-10, -9, -8], [-1, 0, 1], [8, 9, 10]]
    numbers = window.masks.numbers.reshape(3, 3)
    assert numbers[1, 1] == 0
    assert len(np.unique(numbers)) == 9
    bits = np.unpackbits(window.masks.bits.view(np.uint8), axis=1, bitorder="little").reshape(-1, 8, 16)
    above = bits[:, numbers[0, 1] - 1].reshape(-1)[:72].reshape(8, 9)
    assert not above[0].any()
    assert above[1:].all()
    right = bits[:, numbers[2, 2] - 1].reshape(-1)[:72].reshape(8, 9)
    assert right[:7, :8].all()
    assert not right[7].any()
    assert not right[:, 8].any()


def test_a_window_with_a_stride_reads_the_images_that_the_stride_makes():
    graph = Graph([(2, 16, 18), (3, 8, 9)])
    attrs = {"stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    weight = np.zeros((3, 2, 3, 3), np.float32)
    window = direct_window(graph, Node("conv", [0], 1, attrs=attrs, weight=Weight.of(weight)), 16, jit=True)
    assert window.phases.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    apart = window.apart
    assert window.taps.tolist() == [
        [3 * apart - 10, 2 * apart - 9, 3 * apart - 9],
        [apart - 1, 0, apart],
        [3 * apart - 1, 2 * apart, 3 * apart],
    ]
    numbers = window.masks.numbers.reshape(3, 3)
    assert not numbers[1:, 1:].any()  # the input has an even number of rows and columns
    assert len(np.unique(numbers)) == 4


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("average", [False, True])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_pooling_is_torch_s(images, average, data):
    kernel, stride = [data.draw(st.integers(1, 4)) for _ in "yx"], [data.draw(st.integers(1, 3)) for _ in "yx"]
    padding = [data.draw(st.integers(0, k // 2)) for k in kernel]
    size = [data.draw(st.integers(k, 19)) for k in kernel]
    count_pad, ceil = data.draw(st.booleans()), data.draw(st.booleans())
    x = torch.randn(8, 5, *size, generator=torch.Generator().manual_seed(0))
    if average:
        want = F.avg_pool2d(x, kernel, stride, padding, ceil, count_pad)
    else:
        want = F.max_pool2d(x, kernel, stride, padding, 1, ceil)
    attrs = {
        "kernel": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": [1, 1],
        "average": int(average),
        "count_pad": int(count_pad),
    }
    graph = Graph([tuple(x.shape[1:]), tuple(want.shape[1:])], [Node("pool", [0], 1, attrs=attrs)], [0], [1])
    got = run(graph, images, Choice(), x.numpy())
    np.testing.assert_allclose(got, want.numpy()[: len(got)], rtol=1e-5, atol=1e-6)


def test_a_nan_comes_through():
    """A network that breaks must look broken."""
    weight = Weight.of(np.ones((1, 1, 1, 1), np.float32))
    for activation in ACTIVATIONS:
        attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "activation": activation}
        graph = Graph(
            [(1, 2, 2)] * 2,
            [Node("conv", [0], 1, attrs=attrs, weight=weight, arrays={"bias": np.zeros(1, np.float32)})],
            [0],
            [1],
        )
        x = np.array([[[[np.nan, 1.0], [2.0, 3.0]]]], np.float32)
        assert np.isnan(run(graph, False, Choice(), x)).reshape(-1).tolist() == [True, False, False, False]


def test_taps_too_far_apart_are_refused_not_wrapped():
    attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "activation": "none"}
    weight = Weight.of(np.ones((1, 700, 3, 1), np.float32))
    graph = Graph(
        [(700, 3, 64), (1, 1, 64)],
        [Node("conv", [0], 1, attrs=attrs, weight=weight, arrays={"bias": np.zeros(1, np.float32)})],
        [0],
        [1],
    )
    with pytest.raises(Unsupported, match="16-bit"):
        lower(graph, True, variants()[0], 1)
    x = np.ones((1, 700, 3, 64), np.float32)
    assert (run(graph, False, Choice(), x) == 2100).all()


@settings(max_examples=60, deadline=None)
@given(problems(), st.booleans())
def test_a_packed_weight_unpacks(p, images):
    """The kernel's list is the only copy of a weight: it must give every position back."""
    rng = np.random.default_rng(p["seed"])
    shape = (p["outputs"], p["inputs"] // p["groups"], *p["kernel"])
    weight = Weight.of(rng.standard_normal(shape) * (rng.random(shape) < p["density"]))
    size = [
        (n + 2 * q - d * (k - 1) - 1) // s + 1
        for n, q, d, k, s in zip(p["size"], p["padding"], p["dilation"], p["kernel"], p["stride"])
    ]
    attrs = {k: p[k] for k in ("stride", "padding", "dilation", "groups", "activation")} | {"parameters": [0.1, 3.0]}
    bias = {"bias": np.zeros(p["outputs"], np.float32)}
    graph = Graph(
        [(p["inputs"], *p["size"]), (p["outputs"], *size)],
        [Node("conv", [0], 1, attrs=attrs, weight=weight, arrays=bias)],
        [0],
        [1],
    )
    packed = lower(graph, images, "portable", 1, {0: p["choice"]}).packed[0]
    assert packed.nonzeros == weight.nonzeros
    np.testing.assert_array_equal(packed.dense(), weight.dense())
    np.testing.assert_array_equal(packed.plain().values, weight.values)


def test_which_values_are_made_among_the_planes_of_their_reader():
    graph = Graph([(4, 9, 13)], [], [0])

    def among(nodes: list[Node]) -> Layout | None:
        made = Graph(graph.shapes, nodes, [0], graph.outputs)
        return among_planes(made, made.users(), Meter(Limits(), 1), 0)

    def reader(kernel: int, stride: int, padding: int) -> int:
        weight = Weight.of(np.ones((4, 4, kernel, kernel), np.float32))
        attrs = {
            "stride": [stride] * 2,
            "padding": [padding] * 2,
            "dilation": [1, 1],
            "groups": 1,
            "activation": "none",
        }
        size = [(n + 2 * padding - kernel) // stride + 1 for n in (9, 13)]
        graph.nodes = [Node("conv", [0], graph.value((4, *size)), attrs=attrs, weight=weight)]
        return among(graph.nodes)

    made = reader(3, 1, 1)  # three planes of 11 rows; the value begins in the second row of the middle one
    assert (made.channel, made.origin) == (17 * 16, (11 + 1) * 8)  # 16.5 cache lines, so 17
    assert reader(3, 2, 1) is None
    assert reader(3, 1, 0) is None
    assert reader(1, 1, 0) is None
    assert among(graph.nodes * 2) is None  # two readers
