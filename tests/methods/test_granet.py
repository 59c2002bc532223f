"""GraNet: gradual pruning that lands on its target, with regeneration beside it."""

from __future__ import annotations

import math

import pytest
import torch
from _line import Line
from torch import nn

import rankprune as rp
from _nets import batch, cnn, sgd, train
from rankprune.core.budget import layer_counts


def test_without_regeneration_it_is_gmp() -> None:
    masks = []
    for name, options in (("granet", {"grow": 0.0}), ("gmp", {"density_schedule": "cubic"})):
        model = cnn()
        optimizer = sgd(model)
        sp = rp.attach(model, optimizer, name, sparsity=0.9, total_steps=40, every=4, prune_end=0.5, **options)
        train(model, optimizer, 1, 40)
        masks.append(sp.masks)
        sp.finalize()
    assert all(torch.equal(masks[0][n], masks[1][n]) for n in masks[0])


def test_from_half_density_along_the_cubic_to_the_exact_end() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "granet", sparsity=0.9, total_steps=40, every=4, prune_end=0.5, start_density=0.5)
    total, final = sp.groups[0].total, sp.groups[0].final
    first = round(total / 2)
    assert sp.budget == first == sum(int(m.sum()) for m in sp.masks.values())
    shapes = [layer.shape for layer in sp.layers]
    assert [int(m.sum()) for m in sp.masks.values()] == layer_counts(shapes, first, "erk")

    def watch(t: int) -> None:
        number = min(t // 4 - 1, 5)
        if t % 4 == 0 and t < 40:
            assert abs(sp.budget - (final + (first - final) * (1 - number / 5) ** 3)) <= 1

    train(model, optimizer, 1, 40, watch)
    assert sp.budget == final
    sp.finalize()


def test_regeneration_by_hand_and_until_just_before_the_end() -> None:
    """At the target from the first update on: ceil(p · 4) of the smallest leave and the largest gradients enter."""
    line = Line([0.0] * 8, rp.methods.GraNet(every=1, prune_end=0, grow=0.25, start_density=0.5), 0.5, 4, lr=0.0)
    line.activate([0.5, 0.4, 0.3, 0.2, 0.0, 0.0, 0.0, 0.0], [0, 1, 2, 3])
    line.step([9.0, 9.0, 9.0, 0.0, 0.1, 0.2, 0.8, 0.3])  # p = 0.21: one leaves
    assert line.mask == [0, 1, 2, 6]
    assert line.group.plan.steps == range(1, 4)
    rate = line.group.method.fraction(line.group)
    assert rate == pytest.approx(0.005 + 0.245 * (1 + math.cos(math.pi / 4)) / 2)


def test_a_weight_cut_and_grown_in_one_event_starts_from_zero_without_momentum() -> None:
    """The authors zero weight and momentum of what was cut before growth; the smallest weight here has the largest gradient."""
    line = Line([0.0] * 4, rp.methods.GraNet(every=1, prune_end=0, start_density=0.5), 0.5, 4, lr=0.01, momentum=0.9)
    line.activate([0.5, 0.05, 0.0, 0.0], [0, 1])
    line.step([0.1, 2.0, 0.3, 0.2])  # one of two is cut
    assert line.mask == [0, 1]
    assert line.weight.tolist() == pytest.approx([0.499, 0.0, 0.0, 0.0])
    assert line.optimizer.state[line.model.weight]["momentum_buffer"][0].tolist() == pytest.approx([0.1, 0.0, 0.0, 0.0])


def test_forty_steps_of_the_rule_written_out() -> None:
    """SGD, masks on weight and momentum, then: global cut, per-layer drop, zero what was cut, grow by gradient."""
    steps, every, prune_end, sparsity = 40, 4, 20, 0.9
    ours, plain = cnn(), cnn()
    optimizer, twin = sgd(ours), sgd(plain)
    sp = rp.attach(ours, optimizer, "granet", sparsity=sparsity, total_steps=steps, every=every, prune_end=prune_end)
    weights = [dict(plain.named_parameters())[name] for name in sp.masks]
    masks = [torch.ones_like(w, dtype=torch.bool) for w in weights]
    total, final = sp.groups[0].total, sp.groups[0].final

    def apply() -> None:
        for w, mask in zip(weights, masks):
            w.data *= mask
            twin.state[w]["momentum_buffer"] *= mask

    moved = 0
    for t in range(1, steps + 1):
        for model, opt in ((ours, optimizer), (plain, twin)):
            x, y = batch(t)
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
        apply()
        if t % every == 0 and t < steps:
            number = min(t // every - 1, prune_end // every)
            keep = final + round((total - final) * (1 - number * every / prune_end) ** 3)
            sizes = torch.cat([(w.detach().abs() + 1).mul(mask).flatten() for w, mask in zip(weights, masks)])
            inside = torch.zeros(total, dtype=torch.bool)
            inside[sizes.double().topk(keep).indices] = True
            rate = 0.005 + (0.5 - 0.005) * (1 + math.cos(math.pi * t / steps)) / 2
            counts = []
            for mask, part in zip(masks, inside.split([m.numel() for m in masks])):
                mask.copy_(part.view_as(mask))
            for w, mask in zip(weights, masks):
                counts.append(math.ceil(rate * int(mask.sum())))
                stay = int(mask.sum()) - counts[-1]
                chosen = (w.detach().abs() + 1).mul(mask).flatten().double().topk(stay).indices
                mask.view(-1).zero_()[chosen] = True
            before = [m.clone() for m in masks]
            apply()
            for w, mask, count in zip(weights, masks, counts):
                mask.view(-1)[w.grad.abs().masked_fill(mask, -1.0).flatten().topk(count).indices] = True
            moved += sum(int((m & ~b).sum()) for m, b in zip(masks, before))
        for mask, w, (name, mine) in zip(masks, weights, sp.masks.items()):
            assert torch.equal(mask, mine), (t, name)
            assert torch.equal(w, dict(ours.named_parameters())[name]), (t, name)
    assert moved > 1000


def test_the_start_must_be_denser_than_the_end() -> None:
    model = cnn()
    with pytest.raises(ValueError, match=r"start_density=0\.05 is not between"):
        rp.attach(model, sgd(model), "granet", sparsity=0.9, total_steps=40, every=4, start_density=0.05)
