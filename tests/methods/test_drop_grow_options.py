"""The two options of every drop-and-grow method: relative importance and sampled growth."""

from __future__ import annotations

import pytest
import torch
from _line import Line

import rankprune as rp
from _nets import cnn, sgd, train
from rankprune.core.method import relative_importance


def test_relative_importance_by_hand() -> None:
    line = Line([3.0, 1.0, 0.0, 4.0], "rigl", 0.25, 200)
    line.activate([3.0, 1.0, 0.0, 4.0], [0, 1, 3])
    assert relative_importance(line.layer)[0].tolist() == pytest.approx([3 / 8 + 1, 1 / 8 + 1, 0.0, 4 / 8 + 1])


def test_relative_drop_keeps_the_last_weight_of_a_neuron() -> None:
    """Column 1 has one small weight only; by magnitude it leaves, by its share it stays."""
    weight = torch.tensor([[0.9, 0.1, 0.5], [0.8, 0.0, 0.3]])
    for drop, leaves in (("magnitude", (0, 1)), ("relative", (1, 2))):
        model = torch.nn.Linear(3, 2, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        method = rp.methods.RigL(every=1, update_end=3, grow=0.4, drop=drop)
        sp = rp.attach(model, optimizer, method, sparsity=1 / 6, total_steps=9)
        sp.set_masks({"weight": weight != 0})
        with torch.no_grad():
            model.weight.copy_(weight)
        model.weight.grad = torch.zeros_like(weight)
        model.weight.grad[1, 1] = 1.0  # grown
        optimizer.step()
        expected = weight != 0
        expected[leaves], expected[1, 1] = False, True
        assert torch.equal(sp.masks["weight"], expected)


def test_sampled_growth_is_in_proportion_to_the_gradient() -> None:
    """One of two places grows; with gradients 3 and 1 the first is drawn three times in four."""
    first = 0
    for seed in range(400):
        model = torch.nn.Linear(4, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        method = rp.methods.RigL(every=1, update_end=3, grow=0.9, growth="sampled")
        sp = rp.attach(model, optimizer, method, sparsity=0.5, total_steps=9, seed=seed)
        sp.set_masks({"weight": torch.tensor([[True, True, False, False]])})
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[0.5, 0.4, 0.0, 0.0]]))
        model.weight.grad = torch.tensor([[0.0, 0.0, 3.0, 1.0]])
        optimizer.step()
        mask = sp.masks["weight"][0]
        assert int(mask.sum()) == 2
        first += bool(mask[2])
    assert first / 400 == pytest.approx(0.75, abs=4 * (0.75 * 0.25 / 400) ** 0.5)


@pytest.mark.parametrize("name", ["rigl", "set", "rpg", "granet", "svite", "snfs", "dsr"])
def test_every_method_takes_both(name: str) -> None:
    masks = []
    for options in ({}, {"growth": "sampled", "drop": "relative"}):
        model = cnn()
        optimizer = sgd(model)
        sp = rp.attach(model, optimizer, name, sparsity=0.8, total_steps=24, every=3, **options)
        train(model, optimizer, 1, 24)
        assert sp.finalize().kept == sp.groups[0].final
        masks.append(sp.masks)
    assert not all(torch.equal(masks[0][n], masks[1][n]) for n in masks[0])


def test_unknown_words_fail_early() -> None:
    model = cnn()
    with pytest.raises(ValueError, match="growth='soft' is unknown: use 'top' or 'sampled'"):
        rp.attach(model, sgd(model), "rigl", sparsity=0.8, total_steps=24, every=3, growth="soft")
