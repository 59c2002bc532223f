"""Thread counts: the same numbers for each, and calls of several callers at once; measurements of the machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from _agree import trace_once

import rankprune as rp
from rankprune.engine.backend import native
from rankprune.engine.backend.choice import Choice, KernelPlan
from rankprune.engine.backend.engine import Engine
from rankprune.engine.backend.generated import jit_allowed
from rankprune.engine.backend.lowering import lower
from rankprune.engine.backend.shape_choice import shared_height
from rankprune.engine.graph.graph import Graph, Node, Weight
from rankprune.lab.models import create_model


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = create_model("cifar-resnet20", num_classes=10).eval()
    rp.prune(made, sparsity=0.9)
    return made


@pytest.mark.parametrize("tune", [False, True])
def test_the_output_is_the_same_for_every_thread_count(model, tune, monkeypatch):
    monkeypatch.setattr("rankprune.engine.backend.engine.default_threads", lambda: 5)
    trace_once(monkeypatch)
    x = torch.randn(1, 3, 32, 32)
    found = [rp.compile(model, x, threads=count, tune=tune)(x) for count in (1, 2, 3, 5)]
    assert all(torch.equal(found[0], other) for other in found)


def test_callers_at_once_with_threads_that_come_late(model, monkeypatch):
    """More threads than cores: some find the work done when they come, and must not touch it."""
    monkeypatch.setattr("rankprune.engine.backend.engine.default_threads", lambda: 6)
    fast = rp.compile(model, torch.zeros(1, 3, 32, 32), threads=6, tune=False)
    images = torch.randn(12, 1, 3, 32, 32)
    want = [fast(x) for x in images]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(5):
            assert all(torch.equal(a, b) for a, b in zip(want, pool.map(fast, images)))


def test_a_cache_line_goes_to_another_thread_and_back():
    assert 1e-9 < native.round_trip() < 1e-1


@pytest.mark.parametrize("variant", native.variants())
def test_no_kernel_is_faster_than_the_multiply_add_peak(variant):
    """The peak is that of the widest vectors, which the kernels of a dense layer use."""
    shape = (256, 8, 8)
    graph = Graph()
    value, result = graph.value(shape), graph.value(shape)
    source, attrs = graph.value(shape), {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
    weight = Weight((256, 256, 1, 1), np.ones(256 * 256, np.float32), None)
    graph.nodes.append(Node("activation", [value], source, attrs={"activation": "none"}))
    graph.nodes.append(
        Node("conv", [source], result, "", {**attrs, "activation": "none"}, {"bias": np.zeros(256, np.float32)}, weight)
    )
    graph.inputs, graph.outputs = [value], [result]
    lowered = lower(graph, False, variant, 1)
    (call,) = [i for i, node in enumerate(lowered.of_node) if node == 1]
    seconds = min(lowered.program.time(call, 20, False) for _ in range(5))
    peak = max(native.peak(variant, 1) for _ in range(3))
    assert 2e-9 * weight.size * 64 / seconds < 1.05 * peak


@pytest.mark.parametrize(
    ("height", "rows", "slabs", "threads", "nonzeros", "want"),
    [
        (56, 392, 1, 1, 9000, 56),  # one thread
        (56, 392, 1, 2, 9000, 50),  # 8 tasks instead of 7
        (32, 392, 1, 2, 9000, 28),  # 14 instead of 13
        (8, 392, 1, 2, 9000, 8),  # many tasks are divided well anyway
        (26, 25, 1, 2, 1000, 14),  # 7 and 6 vectors
        (26, 25, 1, 2, 60000, 26),  # so much code that the threads divide the channels
        (26, 25, 1, 4, 1000, 26),  # 4, 3, 3 and 3 vectors would be too uneven
        (26, 25, 4, 2, 1000, 26),  # slabs enough
    ],
)
def test_tasks_of_generated_code_are_divided_evenly(height, rows, slabs, threads, nonzeros, want):
    got = shared_height(height, rows, slabs, threads, nonzeros, 64)
    assert got == want
    assert got == height or -(-rows // got) * slabs % threads == 0


@pytest.mark.skipif(native.lanes(native.variants()[0]) < 16 or not jit_allowed(), reason="needs generated code")
def test_the_height_of_a_task_changes_no_sum():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 40, 3, padding=1)
    ).eval()
    rp.prune(net, "random", sparsity=0.7)
    x = torch.randn(1, 3, 24, 24)
    graph = rp.compile(net, x, threads=1, tune=False).program.natives[0].engine.graph
    kernels = KernelPlan({0: Choice(30, 10, lanes=16), 1: Choice(30, 64, lanes=16)}, {})
    found = [Engine(graph, threads, kernels)([x.numpy()])[0] for threads in (1, 2)]
    assert np.array_equal(*found)
