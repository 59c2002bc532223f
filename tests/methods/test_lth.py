"""Lottery tickets: everything returns to the rewind point, counts follow the 20 % rule, the target is exact."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import adamw, cnn, sgd, train


@pytest.mark.parametrize("rewind", [0, 3])
def test_all_returns_to_the_rewind_point(rewind: int) -> None:
    model = cnn()
    optimizer = adamw(model)
    sp = rp.attach(model, optimizer, "lth", sparsity=0.6, total_steps=19, rounds=3, rewind=rewind)
    point: dict[str, torch.Tensor] = {}
    masks = {n: m.clone() for n, m in sp.masks.items()}
    steps = [s for s in rp.methods.LTH(0.6, rounds=3, rewind=rewind).updates(19) if s != rewind]
    assert steps == ([5, 9, 14] if rewind == 0 else [7, 11, 15])

    def remember() -> None:
        point.update({n: t.clone() for n, t in model.state_dict().items()})

    def look(step: int) -> None:
        nonlocal masks
        if step == rewind:
            remember()
        for name, mask in sp.masks.items():
            assert not (mask & ~masks[name]).any()  # nested
        masks = {n: m.clone() for n, m in sp.masks.items()}
        if step in steps:
            for name, value in model.state_dict().items():
                expected = torch.where(masks[name], point[name], 0.0) if name in masks else point[name]
                assert torch.equal(value, expected), (step, name)
            assert not any(optimizer.state.get(p) for p in model.parameters())
        elif step > rewind:
            assert not torch.equal(model[1].running_mean, point["1.running_mean"])
            assert all(optimizer.state.get(p) for p in model.parameters())

    if rewind == 0:
        remember()
    train(model, optimizer, 1, 19, look)
    assert sp.finalize().kept == round(0.4 * sum(m.numel() for m in masks.values()))


def test_each_round_cuts_a_fifth_of_what_is_left() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "lth", sparsity=0.9, total_steps=24, rewind=0)
    counts = [2008]

    def look(step: int) -> None:
        found = sum(int(m.sum()) for m in sp.masks.values())
        if found != counts[-1]:
            counts.append(found)

    train(model, optimizer, 1, 24, look)
    assert len(counts) == 12  # 0.8¹¹ is the first power below 0.1
    assert all(b == a - math.ceil(0.2 * a) for a, b in itertools.pairwise(counts[:-1]))
    assert counts[-1] == 201


def test_the_rewind_point_as_a_share_of_one_training() -> None:
    """With R prunings and k = r S: S + R (S - k) = total."""
    method = rp.methods.LTH(0.9, rounds=4, rewind=0.1)
    assert method.rewind_point(460) == 10  # S = 100: 100 + 4 · 90 = 460
    assert list(method.updates(460)) == [10, 100, 190, 280, 370]
    assert rp.methods.LTH(0.9, rounds=4, rewind="10%").rewind_point(460) == 10


def test_other_methods_weights_are_left_alone() -> None:
    """Beside another method, its layers keep their masks and values, and momenta."""
    model = cnn()
    optimizer = sgd(model)
    rules = {"0": rp.methods.LTH(rounds=1, rewind=0), "*": rp.methods.Magnitude()}
    sp = rp.attach(model, optimizer, rules, sparsity=0.8, total_steps=6)
    start = model[3].weight.detach().clone()
    train(model, optimizer, 1, 3)
    assert sp.groups[0].spent() == sp.groups[0].final
    assert not torch.equal(model[3].weight, start)
    assert optimizer.state.get(model[3].weight)
    assert not optimizer.state.get(model[0].weight)
    assert not optimizer.state.get(model[1].weight)
    train(model, optimizer, 4, 6)
    sp.finalize()


def test_settings_are_checked() -> None:
    for wrong, message in (({"rate": 1.0}, "rate=1.0 is not between"), ({"rounds": 0}, "give an int of 1"), ({"rewind": 9}, "lower rewind")):
        model = nn.Linear(8, 8)
        with pytest.raises(ValueError, match=message):
            rp.attach(model, sgd(model), "lth", sparsity=0.5, total_steps=9, **wrong)
