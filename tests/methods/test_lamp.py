"""LAMP: the score by hand, the greedy cut it stands for, and the layer counts it gives to every method."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import batch, cnn, sgd, train
from rankprune.core.budget import kept, lamp_scores
from rankprune.core.method import DropGrow
from rankprune.core.settings import settings_of


def layers(seed: int = 0) -> nn.Module:
    """Three linear layers with normal weights of very different size."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 9, bias=False), nn.Linear(9, 7, bias=False), nn.Linear(7, 5, bias=False))
    for layer, scale in zip(model, (0.01, 1.0, 30.0)):
        nn.init.normal_(layer.weight, std=scale)
    return model


def greedy_counts(weights: list[torch.Tensor], left: int) -> list[int]:
    """One weight at a time, the one that is least of what its layer would be left with before the cut."""
    alive = [sorted(w.abs().double().flatten().tolist()) for w in weights]  # ascending
    while sum(map(len, alive)) > left:
        ratio = [part[0] ** 2 / sum(x * x for x in part) for part in alive]
        alive[ratio.index(min(ratio))].pop(0)
    return [len(part) for part in alive]


def test_scores_by_hand() -> None:
    assert lamp_scores(torch.tensor([[3.0, -1.0], [2.0, 0.0]])).tolist() == [[1.0, pytest.approx(1 / 14)], [pytest.approx(4 / 13), 0.0]]
    assert lamp_scores(torch.tensor([-1.0, 1.0, 1.0])).tolist() == pytest.approx([1.0, 1 / 2, 1 / 3])  # ties by index
    assert lamp_scores(torch.zeros(2, 2)).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert lamp_scores(torch.empty(0, 3)).shape == (0, 3)  # a rank may hold no row


def test_scores_do_not_overflow_nor_underflow() -> None:
    for scale in (1e-30, 1e30):
        assert torch.allclose(lamp_scores(torch.tensor([3.0, 1.0, 2.0]) * scale), torch.tensor([1.0, 1 / 14, 4 / 13]))


@pytest.mark.parametrize("sparsity", [0.3, 0.8, 0.95])
def test_one_shot_is_the_greedy_cut(sparsity: float) -> None:
    model = layers()
    before = [layer.weight.detach().clone() for layer in model]
    report = rp.prune(model, "lamp", sparsity=sparsity)
    counts = [layer.kept for layer in report.layers]
    assert counts == greedy_counts(before, kept(206, sparsity))
    for layer, weight, count in zip(model, before, counts):
        threshold = weight.abs().flatten().sort(descending=True).values[count - 1]
        assert torch.equal(layer.weight != 0, weight.abs() >= threshold)


def test_the_scale_of_a_layer_does_not_matter() -> None:
    counts = []
    for scale in (1.0, 1e-3):
        model = layers()
        with torch.no_grad():
            model[1].weight.mul_(scale)
        counts.append([layer.kept for layer in rp.prune(model, "lamp", sparsity=0.9).layers])
    assert counts[0] == counts[1]


def test_rounds_cut_at_most_a_fifth_and_land_on_the_target() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "lamp", sparsity=0.9, total_steps=60)
    budgets = [sp.budget]
    train(model, optimizer, 1, 60, lambda _: budgets.append(sp.budget))
    changes = [(a, b) for a, b in pairwise(budgets) if a != b]
    assert len(changes) == 11  # 0.8^11 < 0.1 < 0.8^10
    assert all(b / a >= 0.8 - 1 / a for a, b in changes)
    assert budgets[36] == sp.finalize().kept == kept(2008, 0.9) < budgets[35]


def test_gmp_under_lamp_follows_the_weights_of_each_update() -> None:
    """At every update the counts are those of the scores of what was active just before."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sp = rp.attach(model, optimizer, "gmp", sparsity=0.9, total_steps=12, every=2, distribution="lamp")
    for step in range(1, 13):
        before = [layer.weight.detach().clone() for layer in model]
        for layer in model:
            layer.weight.grad = torch.zeros_like(layer.weight)
        optimizer.step()
        found = [int(mask.sum()) for mask in sp.masks.values()]
        if step % 2 == 0:
            assert found == greedy_counts([w[w != 0] for w in before], sp.budget), step


@pytest.mark.parametrize("name", rp.list_methods())
def test_every_method_takes_the_distribution(name: str) -> None:
    info = rp.method_info(name)
    model = cnn()
    nn.init.normal_(model[0].weight, std=3.0)  # layers of different size, so that "global" and "lamp" differ
    start = [model[i].weight.detach().clone() for i in (0, 3, 8)]
    optimizer = sgd(model, lr=1e-3)
    options: dict[str, Any] = {"every": 3} if "every" in settings_of(info.cls) else {}
    data = {"data": [batch(i) for i in range(4)], "loss_fn": nn.functional.cross_entropy}
    sp = rp.attach(model, optimizer, name, sparsity=0.8, total_steps=24, distribution="lamp", **data, **options)
    at_once = not sp.groups[0].plan.steps and name != "synflow"  # which cuts in rounds, each from what the last one left
    if at_once or (issubclass(info.cls, DropGrow) and sp.sparsity > 0.7):
        assert [int(m.sum()) for m in sp.masks.values()] == greedy_counts(start, kept(2008, 0.8))  # set at attach
    train(model, optimizer, 1, 24)
    latents = [layer.state["latent"].clone() for layer in sp.layers if "latent" in layer.state]
    report = sp.finalize()
    assert report.kept == kept(2008, 0.8)
    if latents:  # the last update chose among the latents as they are now
        assert [layer.kept for layer in report.layers] == greedy_counts(latents, kept(2008, 0.8))


def test_not_with_macs() -> None:
    model = cnn()
    with pytest.raises(ValueError, match="budget='macs' needs distribution='global'"):
        rp.attach(model, sgd(model), "gmp", sparsity=0.9, total_steps=200, budget="macs", distribution="lamp", example=torch.randn(1, 3, 8, 8))
