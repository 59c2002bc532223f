"""EAST's cyclic sparsity: the course of the density, and what enters and leaves along it."""

from __future__ import annotations

import math

import pytest
from _line import Line

import rankprune as rp
from _nets import cnn, sgd, train
from rankprune.core.budget import kept, layer_counts
from rankprune.core.schedules import cyclic


def test_the_schedule_by_hand() -> None:
    schedule = cyclic(1.0, 3.0, 80, cycles=2)
    assert [schedule(t) for t in (0, 10, 20, 30, 40, 60, 80, 500)] == pytest.approx([1, 2, 3, 2, 1, 3, 1, 1])
    assert schedule(5) == pytest.approx(2 - math.cos(math.pi / 4))
    assert cyclic(0.2, 0.2, 10)(5) == 0.2


def test_the_budget_follows_the_cycles_with_erk_counts_and_then_stays() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "east", sparsity=0.9, total_steps=200, every=2)
    final, shapes = kept(2008, 0.9), [m.shape for m in sp.masks.values()]
    assert sp.budget == final
    seen = []

    def look(step: int) -> None:
        seen.append(sp.budget)
        assert [int(m.sum()) for m in sp.masks.values()] == layer_counts(shapes, sp.budget, "erk")

    train(model, optimizer, 1, 200, look)
    for step in range(2, 200, 2):  # two cycles of 40 steps, up to three times the final density
        factor = 2 - math.cos(2 * math.pi * step / 40) if step < 80 else 1.0
        assert seen[step - 1] == round(final * factor), step
    assert max(seen) == 3 * final == seen[19] == seen[59]
    assert sp.timetable[0].reached == 80
    assert sp.finalize().kept == final


def test_growth_is_by_gradient_and_pruning_by_magnitude() -> None:
    """Two of eight; at step 2 of a cycle of 4 the count is 6, at step 4 it is 2 again."""
    method = rp.methods.EAST(every=1, cycles=1, peak=3.0, cycle_end=4, grow=0.0)
    line = Line([0.0] * 8, method, 0.75, 8, lr=0.0)
    line.activate([5.0, 4.0, 0, 0, 0, 0, 0, 0], [0, 1])
    line.step([0.0, 0.0, 0.1, 0.9, 0.2, 0.8, 0.3, 0.7])
    assert line.mask == [0, 1, 3, 5]  # half way up: 4
    line.step([0.0, 0.0, 0.1, 0.0, 0.2, 0.0, 0.3, 0.7])
    assert line.mask == [0, 1, 3, 5, 6, 7]
    line.set([0.5, 0.4, 0.0, 0.3, 0.0, 0.9, 0.2, 0.8])
    line.step(0.0)
    assert line.mask == [0, 1, 5, 7]
    line.step(0.0)
    assert line.mask == [5, 7]
    line.step([9.0] * 8)
    assert line.mask == [5, 7]  # grow=0: nothing is exchanged, and the cycles are over


def test_after_the_cycles_layers_exchange_as_in_itop() -> None:
    method = rp.methods.EAST(every=1, cycles=1, cycle_end=1, grow=0.5)
    line = Line([0.0] * 8, method, 0.5, 10, lr=0.0)
    line.activate([0.9, 0.8, 0.7, 0.6, 0, 0, 0, 0], [0, 1, 2, 3])
    line.step([0, 0, 0, 0, 0.1, 0.4, 0.3, 0.2])
    # The prune rate is a cosine from 0.5 over 10 steps: ceil(4 · 0.488) = 2 leave.
    assert line.mask == [0, 1, 5, 6]


def test_the_last_update_is_at_the_final_density_even_within_a_cycle() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "east", sparsity=0.9, total_steps=100, every=4, update_end=0.3)
    train(model, optimizer, 1, 100)
    assert sp.finalize().kept == kept(2008, 0.9)


def test_the_peak_is_at_most_dense() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "east", sparsity=0.5, total_steps=100, every=1, peak=10.0, cycles=1)
    budgets = []
    train(model, optimizer, 1, 100, lambda _: budgets.append(sp.budget))
    assert max(budgets) == budgets[19] == 2008
    assert sp.finalize().kept == 1004


def test_wrong_settings() -> None:
    for wrong, message in (({"cycles": 0}, "cycles=0 is not a number of cycles"), ({"peak": 0.5}, "peak=0.5 is below 1")):
        with pytest.raises(ValueError, match=message):
            rp.methods.EAST(**wrong)
