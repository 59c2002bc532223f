"""SNFS: momentum stays dense, and decides where the freed weights go."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import adamw, cnn, sgd, train
from rankprune.methods.shared.sparse_learning import LAST_RATE
from rankprune.methods.snfs import mean_momentum, momentum


def pair(first: float, second: float) -> tuple[nn.Module, torch.optim.Optimizer, rp.Sparsifier]:
    """Two layers with 100 active weights of 1000, whose momentum is constant: these two numbers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 10, bias=False), nn.Linear(10, 100, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    sp = rp.attach(model, optimizer, rp.methods.SNFS(every=1), sparsity=0.9, total_steps=10)
    for p, value in zip(model.parameters(), (first, second)):
        p.grad = torch.full_like(p, value)
    return model, optimizer, sp


def test_growth_in_proportion_to_mean_momentum() -> None:
    _, optimizer, sp = pair(3.0, -1.0)
    rate = LAST_RATE + (0.5 - LAST_RATE) * (1 + math.cos(math.pi / 10)) / 2  # at step 1 of 10
    cut = math.ceil(rate * 100)
    optimizer.step()
    assert [int(m.sum()) for m in sp.masks.values()] == [100 - cut + round(1.5 * cut), 100 - cut + round(0.5 * cut)]


def test_grows_at_the_largest_momentum_and_keeps_the_largest_weights() -> None:
    model, optimizer, sp = pair(0.0, 0.0)
    with torch.no_grad():
        model[0].weight[sp.masks["0.weight"]] = torch.linspace(1.0, 2.0, 100)
    wanted = ~sp.masks["0.weight"]
    model[0].weight.grad[wanted] = torch.linspace(1.0, 5.0, 900)
    model[0].weight.grad[sp.masks["0.weight"]] = 0.5
    before, weights = sp.masks["0.weight"].clone(), model[0].weight.detach().clone()
    optimizer.step()
    after = sp.masks["0.weight"]
    grown = after & ~before
    assert int(grown.sum()) > 0
    least = optimizer.state[model[0].weight]["momentum_buffer"][grown].min()
    assert int((model[0].weight.grad[wanted] >= least).sum()) == int(grown.sum())
    assert weights[before & after].min() > weights[before & ~after].max()


def test_momentum_stays_dense_and_counts_follow_it() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "snfs", sparsity=0.9, total_steps=30, every=5)
    moved = []

    def watch(t: int) -> None:
        assert sum(int(m.sum()) for m in sp.masks.values()) == sp.budget
        moved.append([int(m.sum()) for m in sp.masks.values()])
        for name, mask in sp.masks.items():
            buffer = optimizer.state[dict(model.named_parameters())[name]]["momentum_buffer"]
            assert buffer[~mask].count_nonzero() > 0

    train(model, optimizer, 1, 30, watch)
    assert {t for t in range(2, 31) if moved[t - 1] != moved[t - 2]} <= {5, 10, 15, 20, 25}  # not after the last step
    assert moved[0] != moved[-1]
    sp.finalize()


def test_momentum_of_adam_and_of_none() -> None:
    model = cnn()
    optimizer = adamw(model)
    sp = rp.attach(model, optimizer, "snfs", sparsity=0.9, total_steps=30, every=5)
    train(model, optimizer, 1, 2)
    layer = sp.layers[0]
    state = optimizer.state[layer.parameter]
    expected = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8)
    assert torch.equal(momentum(layer), expected)
    assert mean_momentum(layer) == pytest.approx(float(expected[layer.mask].abs().mean()), rel=1e-5)
    optimizer.state.clear()
    layer.parameter.grad = torch.ones_like(layer.parameter)
    assert torch.equal(momentum(layer), layer.parameter.grad)


@pytest.mark.parametrize(("wanted", "cut"), [(True, 9), (False, 44)])
def test_a_layer_that_is_nearly_full_and_wanted_cuts_no_more_than_it_has_room_for(wanted: bool, cut: int) -> None:
    """90 of 100 are active: min(p, 0.1) of them leave where its momentum is above the mean, p = 0.488 otherwise."""
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    sp = rp.attach(model, optimizer, rp.methods.SNFS(every=1), sparsity=0.5, total_steps=10)
    full, thin = torch.arange(100).view(10, 10) < 90, torch.arange(100).view(10, 10) < 10
    sp.set_masks({"0.weight": full, "1.weight": thin})
    for p, value in zip(model.parameters(), (3.0, 1.0) if wanted else (1.0, 3.0)):
        optimizer.state[p]["momentum_buffer"] = torch.full_like(p, value)
    sp.groups[0].step = 1
    assert sp.groups[0].method.stay(sp.groups[0]) == [90 - cut, 5]  # type: ignore[attr-defined]
