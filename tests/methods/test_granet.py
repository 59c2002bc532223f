"""GraNet: gradual pruning that lands on its target, with regeneration beside it."""

from __future__ import annotations

import math

import pytest
import torch
from _line import Line

import rankprune as rp
from _nets import cnn, sgd, train


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
    shapes = [site.shape for site in sp.sites]
    assert [int(m.sum()) for m in sp.masks.values()] == rp.budget.layer_counts(shapes, first, "erk")

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
    assert line.group.updates() == range(1, 4)
    rate = line.group.method.fraction(line.group)
    assert rate == pytest.approx(0.005 + 0.245 * (1 + math.cos(math.pi / 4)) / 2)


def test_the_start_must_be_denser_than_the_end() -> None:
    model = cnn()
    with pytest.raises(ValueError, match=r"start_density=0\.05 is not between"):
        rp.attach(model, sgd(model), "granet", sparsity=0.9, total_steps=40, every=4, start_density=0.05)
