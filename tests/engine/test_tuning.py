"""How kernels are chosen: alone, then inside the network, and from the cache."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rankprune.engine.backend import in_network, tuning
from rankprune.engine.backend.alone import Decision
from rankprune.engine.backend.choice import Choice, KernelPlan
from rankprune.engine.backend.engine import Engine
from rankprune.engine.backend.selfcheck import best_variant
from rankprune.engine.graph.graph import Graph, Node, Weight

NARROW, TALL, WIDE = Choice(1, 4), Choice(1, 7), Choice(2, 6)


def network(*channels: int) -> Graph:
    """1x1 convolutions in a row, at 20 % density."""
    rng, graph = np.random.default_rng(0), Graph()
    values = [graph.value((count, 8, 8)) for count in channels]
    attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "activation": "relu"}
    for a, b in itertools.pairwise(values):
        inputs, outputs = graph.shapes[a][0], graph.shapes[b][0]
        position = rng.permutation(outputs * inputs)[: outputs * inputs // 5]
        weight = Weight(
            (outputs, inputs, 1, 1),
            rng.standard_normal(position.size).astype(np.float32),
            np.sort(position).astype(np.int32),
        )
        graph.nodes.append(Node("conv", [a], b, f"layer{a}", attrs, {"bias": np.zeros(outputs, np.float32)}, weight))
    graph.inputs, graph.outputs = values[:1], values[-1:]
    return graph


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Layers measured alone, and networks run, by way of a cache of their own. Every weight counts as uncached."""
    monkeypatch.setattr(tuning, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(tuning, "CACHED_NONZEROS", 0)
    done = {"alone": 0, "networks": 0}
    alone, together = tuning.measure, tuning.fastest

    def count_alone(*args):
        done["alone"] += 1
        return alone(*args)

    def count_networks(*args):
        done["networks"] += 1
        return together(*args)

    monkeypatch.setattr(tuning, "measure", count_alone)
    monkeypatch.setattr(tuning, "fastest", count_networks)
    return done


def test_what_was_measured_in_a_network_holds_for_that_network_only(measured):
    graph, variant = network(32, 48, 32, 48), best_variant()
    first = tuning.tune(graph, False, variant)
    assert measured == {"alone": 2, "networks": 1}  # the first and the last layer are alike
    assert set(first) == {0, 1, 2}
    assert tuning.tune(graph, False, variant) == first
    assert measured == {"alone": 2, "networks": 1}
    tuning.tune(network(32, 48, 32), False, variant)
    assert measured == {"alone": 2, "networks": 2}


def test_a_network_that_the_caches_hold_is_not_run(measured, monkeypatch):
    monkeypatch.setattr(tuning, "CACHED_NONZEROS", 10**6)
    tuning.tune(network(32, 48), False, best_variant())
    assert measured == {"alone": 1, "networks": 0}


def test_a_network_whose_kernels_would_fill_the_memory_is_not_run(measured, monkeypatch):
    monkeypatch.setattr(tuning, "MOST_NONZEROS", 1)
    tuning.tune(network(32, 48), False, best_variant())
    assert measured == {"alone": 1, "networks": 0}


def test_the_kernel_that_was_faster_in_the_network_is_taken_and_the_reason_given(measured, monkeypatch):
    monkeypatch.setattr(tuning, "measure", lambda *args: Decision(NARROW, 1e-3, None, "alone", (TALL,)))
    monkeypatch.setattr(tuning, "fastest", lambda graph, variant, offered, alike: dict.fromkeys(offered, TALL))
    (decision,) = tuning.tune(network(32, 48), False, best_variant()).values()
    assert (decision.choice, decision.why) == (TALL, f"alone; faster in the network than {NARROW}")


def test_layers_that_are_alike_share_the_kernel_with_the_least_sum(monkeypatch):
    graph = network(16, 16, 16, 16)
    times = np.array([[1.0, 1.0, 1.0], [0.7, 1.1, 0.99], [1.2, 1.1, 0.97]])  # (programs, nodes)
    monkeypatch.setattr(in_network, "_in_turns", lambda graph, programs: times)
    monkeypatch.setattr(in_network, "default_threads", lambda: 1)
    offered = {0: (NARROW, TALL, WIDE), 1: (NARROW, TALL, WIDE), 2: (NARROW, TALL, WIDE)}
    best = in_network.fastest(graph, best_variant(), offered, {0: "a", 1: "a", 2: "b"})
    assert best == {0: TALL, 1: TALL, 2: WIDE}


def test_a_network_with_values_too_large_for_several_programs_keeps_its_kernels(monkeypatch):
    monkeypatch.setattr(in_network, "_in_turns", lambda graph, programs: pytest.fail("was run"))
    monkeypatch.setattr(in_network, "MOST_BYTES", 3 * 16 * 64 * 4)
    offered = {0: (NARROW, TALL)}
    assert in_network.fastest(network(16, 16), best_variant(), offered, {0: "a"}) == {0: NARROW}


def test_core_seconds_with_one_and_two_threads_count(monkeypatch):
    """A kernel that is slightly slower on one thread is taken if two threads share it better."""
    graph, measured = network(16, 16), iter([np.array([[1.0], [1.05]]), np.array([[0.6], [0.5]])])
    monkeypatch.setattr(in_network, "_in_turns", lambda graph, programs: next(measured))
    monkeypatch.setattr(in_network, "default_threads", lambda: 2)
    assert in_network.fastest(graph, best_variant(), {0: (NARROW, TALL)}, {0: "a"}) == {0: TALL}
    measured = iter([np.array([[1.0], [1.05]])])
    monkeypatch.setattr(in_network, "default_threads", lambda: 1)
    assert in_network.fastest(graph, best_variant(), {0: (NARROW, TALL)}, {0: "a"}) == {0: NARROW}


def test_what_was_measured_with_one_core_is_not_taken_with_two(measured, monkeypatch):
    graph, variant = network(32, 48), best_variant()
    for cores, networks in ((1, 1), (2, 2), (3, 2), (1, 2)):
        monkeypatch.setattr(in_network, "default_threads", lambda cores=cores: cores)
        tuning.tune(graph, False, variant)
        assert measured == {"alone": 1, "networks": networks}


def test_the_first_kernel_stays_unless_another_is_clearly_faster(monkeypatch):
    graph = network(16, 16, 16)
    monkeypatch.setattr(in_network, "_in_turns", lambda graph, programs: np.array([[1.0, 1.0], [0.99, 0.97]]))
    best = in_network.fastest(graph, best_variant(), {0: (NARROW, TALL), 1: (NARROW, TALL)}, {0: "a", 1: "b"})
    assert best == {0: NARROW, 1: TALL}


def test_every_layer_is_timed_in_every_program_with_its_kernel(monkeypatch):
    graph, plans = network(16, 16, 24), []
    lower = in_network.lower

    def lowered(*args):
        plans.append((args[3], args[4]))
        return lower(*args)

    monkeypatch.setattr(in_network, "lower", lowered)
    monkeypatch.setattr(in_network, "default_threads", lambda: 4)
    found = in_network.fastest(graph, best_variant(), {0: (NARROW, TALL, WIDE), 1: (TALL,)}, {0: "a", 1: "b"})
    each = [{0: NARROW, 1: TALL}, {0: TALL, 1: TALL}, {0: WIDE, 1: TALL}]
    assert plans == [(1, each[0]), *((threads, plan) for threads in (1, 2) for plan in each)]
    assert found[0] in (NARROW, TALL, WIDE)
    assert found[1] == TALL
    times = in_network._in_turns(graph, [lower(graph, False, best_variant(), 1)])
    assert times.shape == (1, 2)
    assert (times > 0).all()
    assert (times < 1).all()


def test_the_output_is_the_same_for_every_thread_count(measured, monkeypatch):
    monkeypatch.setattr("rankprune.engine.backend.engine.default_threads", lambda: 3)
    graph = network(64, 96, 64, 130)
    kernels = KernelPlan({i: d.choice for i, d in tuning.tune(graph, False, best_variant()).items()}, {})
    x = np.random.default_rng(1).standard_normal((1, 64, 8, 8)).astype(np.float32)
    (first,), *others = [Engine(graph, threads, kernels)([x]) for threads in (1, 2, 3)]
    assert all(np.array_equal(first, other[0]) for other in others)
