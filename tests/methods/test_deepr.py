"""DeepR: the count stands, signs change only through dormancy, and without noise it is SGD."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from _line import Line
from torch import nn

import rankprune as rp
from _nets import adamw, cnn, sgd, train


def test_without_decay_and_noise_it_is_sgd_while_no_sign_changes() -> None:
    line = Line([0.5, -0.5, 0.5, -0.5], rp.methods.DeepR(l1=0.0, noise=0.0), 0.5, 10)
    active = line.mask
    before = line.weight.clone()
    line.step([1.0, -1.0, 2.0, -2.0])
    assert line.mask == active
    expected = before - 0.1 * torch.tensor([1.0, -1.0, 2.0, -2.0])
    assert torch.allclose(line.weight[active], expected[active])


def test_decay_is_lr_l1_towards_zero() -> None:
    line = Line([0.5, -0.5], rp.methods.DeepR(l1=0.01, noise=0.0), 0.5, 10)
    line.step(0.0)
    assert line.weight[line.mask].abs().item() == pytest.approx(0.5 - 0.1 * 0.01)


def test_a_weight_that_would_change_its_sign_falls_dormant_and_another_wakes() -> None:
    values = [0.05, -0.3, 0.2, -0.1, 0.4, -0.2]
    line = Line(values, rp.methods.DeepR(l1=0.0, noise=0.0), 0.5, 100, momentum=0.9)
    line.activate([0.05, -0.3, 0.2, 0.0, 0.0, 0.0], [0, 1, 2])
    line.step([1.0, 0.0, 0.0, 9.0, 9.0, 9.0])  # 0.05 - 0.1 < 0
    assert len(line.mask) == 3
    assert {1, 2} <= set(line.mask)
    woken = next(i for i in line.mask if i not in (1, 2))
    assert line.weight[woken].item() == pytest.approx(1e-12 if values[woken] > 0 else -1e-12)
    momentum = line.optimizer.state[line.model.weight]["momentum_buffer"][0]
    assert momentum[woken] == 0.0  # it starts anew, even if it is the one that fell


def test_one_that_wakes_where_it_fell_has_no_momentum_left() -> None:
    line = Line([0.05, -0.3], rp.methods.DeepR(l1=0.0, noise=0.0), 0.5, 100, momentum=0.9)
    line.activate([0.05, -0.3], [0, 1])
    line.layer.state["count"] = 2  # all are active: the one that falls is the only one that can wake
    line.step([1.0, 0.0])
    assert line.mask == [0, 1]
    assert line.weight[0].item() == pytest.approx(1e-12)
    assert line.optimizer.state[line.model.weight]["momentum_buffer"][0, 0] == 0.0


@pytest.mark.parametrize("soft", [False, True])
def test_signs_never_flip(soft: bool) -> None:
    model = cnn()
    first = {n: p.detach().sign() for n, p in model.named_parameters()}
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "deepr", sparsity=0.8, total_steps=40, soft=soft, noise=1e-2)
    final = sp.groups[0].final
    seen = []

    def watch(t: int) -> None:
        for name, mask in sp.masks.items():
            weight = dict(model.named_parameters())[name].detach()
            assert ((weight.sign() == first[name]) | ~mask).all() or t > 38  # rewiring ends at 0.95: then SGD alone
            assert (weight[mask] != 0).all()
        seen.append(sum(int(m.sum()) for m in sp.masks.values()))
        assert seen[-1] == sp.budget

    train(model, optimizer, 1, 40, watch)
    assert seen[37:] == [final] * 3  # from update_end = 0.95 on
    assert (set(seen) == {final}) is not soft
    sp.finalize()


def test_the_soft_wall_makes_the_right_share_active() -> None:
    """With no loss, θ walks in a potential whose stationary share above 0 is the density: 0.2 of 4000."""
    torch.manual_seed(0)
    method = rp.methods.DeepR(soft=True, l1=1.0, noise=1.0, update_end=1.0)
    line = Line((torch.randn(4000) * 0.05).tolist(), method, 0.8, 3000, lr=0.02)
    counts = []
    for t in range(2500):
        line.step(0.0)
        if t > 1000:
            counts.append(len(line.mask) / 4000)
    assert sum(counts) / len(counts) == pytest.approx(0.2, abs=0.03)
    assert min(counts) < max(counts)


def test_soft_needs_both_forces() -> None:
    with pytest.raises(ValueError, match="soft DeepR needs l1 and noise above 0"):
        Line([0.1, 0.2], rp.methods.DeepR(soft=True, l1=0.0), 0.5, 10)


@pytest.mark.parametrize("make", [sgd, adamw])
def test_soft_resumes_bit_for_bit(make: Any) -> None:
    def start(model: nn.Module) -> tuple[torch.optim.Optimizer, rp.Sparsifier]:
        optimizer = make(model)
        return optimizer, rp.attach(model, optimizer, "deepr", sparsity=0.8, total_steps=20, soft=True, noise=1e-2)

    model, again = cnn(), cnn(seed=9)
    optimizer, sp = start(model)
    train(model, optimizer, 1, 7)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), sp.state_dict()])
    train(model, optimizer, 8, 20)
    other, resumed = start(again)
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    resumed.load_state_dict(saved[2])
    train(again, other, 8, 20)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values()))
    assert sp.finalize().kept == resumed.finalize().kept == sp.groups[0].final


@pytest.mark.parametrize("first_lr", [0.05, 0.0])
def test_soft_starts_in_its_stationary_state(first_lr: float) -> None:
    """Dormant ones start spread evenly down to the wall, as in the authors' code, so that few wake in the first step.

    One that is u below 0 wakes with the chance P(lr · noise · N > u): (1 - p) lr · noise / (wall √(2π)) of all. Also where
    a warm-up starts at a learning rate of 0; and they move with the wall where the learning rate falls a hundredfold.
    """
    torch.manual_seed(0)
    method = rp.methods.DeepR(soft=True, noise=1e-5)
    line = Line((torch.randn(20_000) * 0.1).tolist(), method, 0.95, 100, lr=first_lr)
    line.optimizer.param_groups[0]["lr"] = 0.05
    dormant = ~line.sp.masks["weight"]
    line.step(0.0)
    theta, wall = line.layer.state["theta"][dormant], line.layer.state["wall"]
    assert wall == pytest.approx(0.95 / 0.05 * 0.05 * 1e-10 / 2e-5)
    assert len(line.mask) / 20_000 == pytest.approx(0.05 + 0.95 * 0.05 * 1e-5 / wall / math.sqrt(2 * math.pi), rel=0.05)
    assert float(theta.mean()) == pytest.approx(-wall / 2, rel=0.05)  # uniform
    assert float(theta.min()) == pytest.approx(-wall, rel=1e-3)
    line.optimizer.param_groups[0]["lr"] = 5e-4
    dormant &= ~line.sp.masks["weight"]
    before = float(line.layer.state["theta"][dormant].mean())
    line.step(0.0)
    assert float(line.layer.state["theta"][dormant].mean()) == pytest.approx(before / 100, rel=0.05)
