"""Batches whose last layers run for several images at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import rankprune as rp
from rankprune.engine import runtime
from rankprune.engine.backend import engine as engine_module
from rankprune.engine.backend import native, stacked
from rankprune.engine.backend.engine import TOGETHER, Engine
from rankprune.engine.backend.generated import jit_allowed
from rankprune.engine.backend.selfcheck import best_variant
from rankprune.engine.graph.graph import Graph
from rankprune.engine.graph.limits import Limits

pytestmark = pytest.mark.skipif(
    native.lanes(best_variant()) < 16 or not jit_allowed(), reason="no code is generated on this system"
)


@pytest.fixture(autouse=True)
def small_networks(monkeypatch):
    """Networks of this size count as large, and the machine has two cores."""
    monkeypatch.setattr(stacked, "WEIGHTS", 1)
    monkeypatch.setattr(engine_module, "CACHE_BYTES", 0)
    monkeypatch.setattr(engine_module, "default_threads", lambda: 2)


def layer(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """As in ResNet: 1x1, 3x3, 1x1, with the input added."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        middle = channels // 2
        self.body = nn.Sequential(
            layer(channels, middle), nn.ReLU(), layer(middle, middle, 3, stride), nn.ReLU(), layer(middle, channels)
        )
        self.skip = layer(channels, channels, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def network(channels: int, *strides: int, last: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 11)] if last is None else [last]
    made = nn.Sequential(layer(3, channels, 3, 2), nn.ReLU(), *(Block(channels, s) for s in strides), *head).eval()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.bias.data.normal_()
            module.running_var.uniform_(0.5, 2)
    rp.prune(made, "random", sparsity=0.7, seed=0)
    return made


def pooled_first(channels: int) -> nn.Module:
    """Its last layers begin with a 3x3 with a stride."""
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 5)]
    convolutions = [layer(channels, 40, 3, 2), nn.ReLU(), layer(40, 40, 3)]
    return nn.Sequential(nn.MaxPool2d(2), *convolutions, *head)


def engine_of(fast) -> Engine:
    (native_part,) = fast.program.natives
    return native_part.engine


def numbers(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return module(x)


@pytest.mark.parametrize(
    ("channels", "strides", "size", "last"),
    [
        (40, (1, 2, 1), (36, 36), None),  # the first 3x3 with a stride has large images, the next blocks small ones
        (36, (2, 1), (28, 28), None),  # images of 7x7, which begin anywhere in a vector
        (34, (1, 1), (22, 30), None),
        (32, (2, 2, 1), (64, 40), None),  # 3x3 with a stride among the last layers
        (36, (2, 1), (30, 30), None),  # 15x15, which a stride of 2 does not divide evenly
        (32, (1,), (56, 56), pooled_first(32)),
        (33, (1, 2), (52, 20), nn.ReLU()),  # its result is an image
        (32, (1,), (18, 14), nn.Sequential(nn.Hardswish(), nn.Conv2d(32, 9, 1))),
    ],
)
def test_the_same_as_torch(channels, strides, size, last):
    model = network(channels, *strides, last=last)
    x = torch.randn(13, 3, *size)
    want = numbers(model, x)
    found = []
    for threads in (1, 2):
        fast = rp.compile(model, x[:1], threads=threads, tune=False)
        assert fast.islands == ()
        for batch in (1, 4, 8, 11, 13):
            got = fast(x[:batch])
            assert (got - want[:batch]).abs().max() <= 1e-5 * want.abs().max(), (batch, threads)
        found.append(got)
        lowered = engine_of(fast).lowered(False, images=TOGETHER)
        assert lowered is not None
        assert lowered.batch == TOGETHER
    assert torch.equal(*found)


def test_small_batches_run_image_by_image():
    fast = rp.compile(network(32, 1, 1), torch.zeros(1, 3, 28, 28), threads=2, tune=False)
    x = torch.randn(8, 3, 28, 28)
    alone = torch.cat([fast(image[None]) for image in x])
    for batch in (2, 5, 7):
        assert torch.equal(fast(x[:batch]), alone[:batch])
    assert {images for _, images, _ in engine_of(fast)._lowered} == {1}
    fast(x)
    assert {images for _, images, _ in engine_of(fast)._lowered} == {1, TOGETHER}


def graph_of(model: nn.Module, *size: int) -> Graph:
    return engine_of(rp.compile(model, torch.zeros(1, 3, *size), threads=1, tune=False)).graph


def test_where_the_last_layers_begin():
    graph = graph_of(network(32, 1, 2, 1), 64, 64)  # 32x32, then 16x16
    found = stacked.stack(graph, 4, 16, True)
    assert found is not None
    # The 3x3 with a stride reads large images, so it runs for each alone; the 1x1 with a stride need not.
    assert [tuple(node.kernel.shape) for node in graph.nodes[found.first :][:2]] == [(32, 16, 1, 1), (32, 32, 1, 1)]
    assert graph.nodes[found.first + 1].attrs["stride"] == [2, 2]
    assert found.graph.shapes[graph.outputs[0]] == (4, 11)
    assert found.outputs == graph.outputs
    assert {graph.shapes[value] for value in found.handed} == {(16, 16, 16), (32, 32, 32)}
    assert {found.graph.shapes[value] for value in found.handed.values()} == {(16, 64, 16), (32, 128, 32)}
    assert stacked.stack(graph, 4, 16, False) is None
    assert stacked.stack(graph, 4, 8, True) is None


def test_few_weights_or_other_operators_run_image_by_image(monkeypatch):
    pooled = network(32, 1, last=nn.Sequential(Block(32, 1), nn.MaxPool2d(2), Block(32, 1)))
    graph = graph_of(pooled, 28, 28)
    found = stacked.stack(graph, 4, 16, True)
    assert found is not None
    assert graph.nodes[found.first - 1].op == "pool"
    ends = graph_of(network(32, 1, 1, last=nn.MaxPool2d(2)), 28, 28)
    assert stacked.stack(ends, 4, 16, True) is None
    monkeypatch.setattr(stacked, "WEIGHTS", 1 << 20)
    assert stacked.stack(graph, 4, 16, True) is None


def test_a_saved_plan(tmp_path):
    model, x = network(40, 1, 2, 1), torch.randn(9, 3, 36, 36)
    fast = rp.compile(model, x[:1], threads=1, tune=False)
    fast.save(tmp_path / "p")
    loaded = runtime.load(tmp_path / "p", 1)
    np.testing.assert_array_equal(loaded(x.numpy()), fast(x).numpy())
    assert loaded.engine.lowered(False, images=TOGETHER) is not None


def test_without_enough_memory_each_image_runs_alone():
    fast = rp.compile(network(32, 1, 1), torch.zeros(1, 3, 28, 28), threads=1, tune=False)
    x = torch.randn(8, 3, 28, 28).numpy()
    graph = fast.program.natives[0].engine.graph
    graph = graph.with_weights({i: n.kernel.plain() for i, n in enumerate(graph.nodes) if n.weight is not None})
    for memory in range(200_000, 2_000_000, 20_000):
        try:
            engine = Engine(graph, 1, limits=Limits(memory=memory))
            break
        except ValueError:
            continue
    assert engine.lowered(False, images=TOGETHER) is None
    np.testing.assert_allclose(engine([x])[0], Engine(graph, 1)([x])[0], rtol=1e-4, atol=1e-5)
    small = Engine(graph, 1, limits=Limits(work=engine_work(graph)))
    assert small.lowered(False, images=TOGETHER) is not None  # the limit is for each image


def engine_work(graph: Graph) -> float:
    """About the least limit of work with which single images run."""
    work = 1e5
    while True:
        try:
            Engine(graph, 1, limits=Limits(work=work))
            return work * 1.2
        except ValueError:
            work *= 1.1


def test_the_fastest_layout_is_measured_and_the_others_are_freed(monkeypatch):
    engine = engine_of(rp.compile(network(32, 1, 1), torch.zeros(1, 3, 28, 28), threads=1, tune=False))
    alone = engine.weight_bytes()
    x = torch.randn(16, 3, 28, 28).numpy()
    want = engine([x])[0]
    assert engine.weight_bytes() > 1.3 * alone
    engine.choose_layout(16, tries=2)
    assert (engine.eight, engine.images) in {(False, 1), (True, 1), (False, TOGETHER)}
    assert {key[:2] for key in engine._lowered} <= {(False, 1), (engine.eight, engine.images)}
    np.testing.assert_allclose(engine([x])[0], want, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(engine_module, "MARGIN", 0.0)
    engine.choose_layout(16, tries=2)
    assert (engine.eight, engine.images) == (False, 1)
    assert engine.weight_bytes() == alone
    np.testing.assert_allclose(engine([x])[0], want, rtol=1e-4, atol=1e-5)
