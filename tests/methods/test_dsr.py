"""DSR: one threshold that finds its height, growth in proportion to what survived, never where it just cut."""

from __future__ import annotations

import itertools

import pytest
import torch
from _line import Line
from torch import nn

import rankprune as rp
from _nets import cnn, sgd, train
from rankprune.core.plan import Run
from rankprune.methods.dsr import LengtheningPeriod
from rankprune.methods.shared.redistribute import share_out


def test_threshold_by_hand() -> None:
    """Aim 0.25 · 4 = 1. Two are cut: > 1.1, so H halves; then none: < 0.9, so it doubles; then one: it stays."""
    line = Line([0.0] * 12, rp.methods.DSR(every=1, grow=0.25, threshold=0.1, update_end=1.0), 1 - 4 / 12, 100, lr=0.0)
    line.activate([0.5, 0.05, -0.06, 0.4] + [0.0] * 8, [0, 1, 2, 3])
    line.step(1.0)
    assert line.group.state["threshold"] == 0.05
    assert {0, 3} <= set(line.mask)
    assert len(line.mask) == 4
    assert not {1, 2} & set(line.mask)  # what was just cut is not grown
    line.activate([0.5, 0.3, -0.3, 0.4] + [0.0] * 8, [0, 1, 2, 3])
    line.step(1.0)
    assert line.mask == [0, 1, 2, 3]
    assert line.group.state["threshold"] == 0.1
    line.activate([0.5, 0.05, -0.3, 0.4] + [0.0] * 8, [0, 1, 2, 3])
    line.step(1.0)
    assert line.group.state["threshold"] == 0.1


def test_growth_in_proportion_to_survivors() -> None:
    model = nn.Sequential(nn.Linear(100, 10, bias=False), nn.Linear(10, 100, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = rp.methods.DSR(every=1, threshold=0.5, update_end=1.0)
    sp = rp.attach(model, optimizer, method, sparsity=0.9, total_steps=20)
    with torch.no_grad():  # of 100 active each: 60 above the threshold in the first, 20 in the second
        for layer, above in zip(model, (60, 20)):
            on = sp.masks[f"{'0' if layer is model[0] else '1'}.weight"].nonzero()
            layer.weight[tuple(on[:above].T)] = 1.0
            layer.weight[tuple(on[above:].T)] = 0.1
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert [int(m.sum()) for m in sp.masks.values()] == [60 + 90, 20 + 30]  # 120 freed, 3 : 1


def test_the_period_grows() -> None:
    steps = list(LengtheningPeriod(every=100, update_end=19_000).steps(Run(20_000, grows=True)))  # the authors' 200 epochs of 100 steps
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    assert sorted(set(gaps)) == [100, 200, 400, 800]
    assert all(gap == (100 if a < 2500 else 200 if a < 8000 else 400 if a < 14000 else 800) for a, gap in zip(steps[:-1], gaps))
    assert max(steps) < 19_000


def test_the_last_weight_of_a_layer_stays() -> None:
    line = Line([0.0] * 8, rp.methods.DSR(every=1, threshold=10.0, update_end=1.0), 0.5, 10, lr=0.0)
    line.activate([0.1, 0.2, 0.3, -0.4, 0.0, 0.0, 0.0, 0.0], [0, 1, 2, 3])
    line.step(0.0)
    assert 3 in line.mask
    assert len(line.mask) == 4


def test_counts_move_between_layers_and_sum_to_the_budget() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "dsr", sparsity=0.8, total_steps=60, every=3, threshold=0.02)
    first = [int(m.sum()) for m in sp.masks.values()]

    def watch(_: int) -> None:
        assert sum(int(m.sum()) for m in sp.masks.values()) == sp.budget == sp.groups[0].final

    train(model, optimizer, 1, 60, watch)
    assert [int(m.sum()) for m in sp.masks.values()] != first
    sp.finalize()


def test_share_out() -> None:
    assert share_out([1.0, 1.0], 10, [100, 100]) == [5, 5]
    assert share_out([9.0, 1.0], 10, [3, 100]) == [3, 7]  # what overflows goes to the other
    assert share_out([0.0, 0.0], 6, [4, 8]) == [2, 4]
    assert share_out([1.0, 2.0, 3.0], 0, [1, 1, 1]) == [0, 0, 0]
    assert share_out([5.0, 5.0, 1.0], 12, [2, 2, 8]) == [2, 2, 8]


def test_no_macs() -> None:
    method = rp.methods.DSR(every=3, budget="macs", distribution="global")
    model = cnn()
    with pytest.raises(ValueError, match="cannot hold while weights move"):
        rp.attach(model, sgd(model), method, sparsity=0.8, total_steps=60, example=torch.zeros(1, 3, 8, 8))
