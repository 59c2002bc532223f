"""The comparison with other engines."""

from __future__ import annotations

import os

import pytest
import torch

from rankprune.lab.bench.benchmark import benchmark, in_turns, timed
from rankprune.lab.models import create_model


def test_engines_in_turns_agree_and_absent_ones_are_named(tmp_path, monkeypatch):
    import rankprune.engine.backend.tuning as tuning

    monkeypatch.setattr(tuning, "cache_folder", lambda: tmp_path)
    torch.manual_seed(0)
    model = create_model("cifar-resnet20", 10).eval()
    found = benchmark(model, torch.zeros(2, 3, 32, 32), ("torch", "deepsparse"), threads=1, rounds=3)
    assert [row.name for row in found.rows] == ["rankprune", "torch"]
    assert all(0 < row.minimum <= row.median and row.error < 1e-4 for row in found.rows)
    assert found.ratio("rankprune") == found.ratio("rankprune", "minimum") == 1
    if hasattr(os, "sched_getaffinity"):
        assert found.cpus == (min(os.sched_getaffinity(0)),)
        assert f"1 thread on CPU {found.cpus[0]}," in str(found)
    assert "needs its own environment" in found.absent["deepsparse"]
    assert "deepsparse is left out" in str(found)
    with pytest.raises(ValueError, match="no engine tensorrt"):
        benchmark(model, torch.zeros(1, 3, 32, 32), ("tensorrt",))


def test_an_output_of_zeros_has_an_error_and_not_nan():
    zeros = torch.nn.Linear(4, 3)
    for parameter in zeros.parameters():
        torch.nn.init.zeros_(parameter)
    exact = in_turns(zeros, {"a": lambda x: timed(lambda: zeros(torch.from_numpy(x)).detach().numpy())}, (1, 4), 1)
    off = in_turns(zeros, {"a": lambda x: timed(lambda: zeros(torch.from_numpy(x)).detach().numpy() + 0.5)}, (1, 4), 1)
    assert (exact[0].error, off[0].error) == (0.0, 0.5)
