"""ST-3: the soft threshold, the scale of a filter, scores by sigma."""

from __future__ import annotations

import math

import pytest
import torch
from _line import Line
from torch import nn

import rankprune as rp
from _nets import cnn, sgd, train


def test_soft_threshold_and_straight_through_by_hand() -> None:
    line = Line([0.5, -0.4, 0.3, 0.1], rp.methods.ST3(prune_start=0, prune_end=1, rescale=False), 0.5, 10)
    line.step(0.0)
    assert line.weight.tolist() == pytest.approx([0.2, -0.1, 0.0, 0.0])
    line.step([1.0, 1.0, 1.0, -1.0])
    assert line.layer.state["latent"][0].tolist() == pytest.approx([0.4, -0.5, 0.2, 0.2])


def test_each_filter_is_scaled_by_what_it_lost() -> None:
    model = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, -0.4, 0.3, 0.1], [0.9, 0.2, 0.1, 0.1]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rp.attach(model, optimizer, rp.methods.ST3(prune_start=0, prune_end=1), sparsity=5 / 8, total_steps=9)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()  # 0.5, 0.4 and 0.9 stay, T = 0.3
    first, second = 1.01 / (0.9 / 1.3 + 0.01), 1.01 / (0.9 / 1.3 + 0.01)
    assert model.weight[0].tolist() == pytest.approx([0.2 * first, -0.1 * first, 0.0, 0.0])
    assert model.weight[1].tolist() == pytest.approx([0.6 * second, 0.0, 0.0, 0.0])


def test_a_filter_that_lost_nothing_is_not_scaled() -> None:
    line = Line([0.5, -0.4, 0.3, 0.1], rp.methods.ST3(prune_start=5, prune_end=9), 0.5, 10)
    line.step(0.0)
    assert line.weight.tolist() == pytest.approx([0.5, -0.4, 0.3, 0.1])


def test_sigma_is_a_global_cut_of_scaled_scores() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "st3", sparsity=0.9, total_steps=20, sigma=True)
    train(model, optimizer, 1, 20)
    scores = {s.name: s.state["latent"].abs() * math.sqrt(sum(s.shape)) for s in sp.layers}
    flat = torch.cat([score.reshape(-1) for score in scores.values()])
    cut = flat.sort(descending=True).values[sp.budget]
    for layer in sp.layers:
        assert torch.equal(layer.mask, scores[layer.name] > cut)
        assert float(layer.state["threshold"]) == pytest.approx(float(cut) / math.sqrt(sum(layer.shape)), rel=1e-5)


def test_transposed_filters() -> None:
    torch.manual_seed(0)
    model = nn.ConvTranspose2d(3, 2, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sp = rp.attach(model, optimizer, rp.methods.ST3(prune_start=0, prune_end=1), sparsity=0.5, total_steps=9)
    latent = model.weight.detach().clone()
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    mask, threshold = sp.masks["weight"], sp.layers[0].state["threshold"]
    ratio = (latent.abs() * mask).sum((0, 2, 3)) / latent.abs().sum((0, 2, 3))
    expected = (latent.abs() - threshold) * latent.sign() * mask * (1.01 / (ratio + 0.01)).view(1, 2, 1, 1)
    assert torch.allclose(model.weight.detach(), expected, atol=1e-6)
