"""Thread counts: the same numbers for each, and calls of several callers at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from _agree import trace_once

import rankprune as rp
from rankprune.engine.backend import native
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
