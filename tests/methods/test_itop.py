"""In-time over-parameterisation: the authors' settings, and the rate R_s of weights that were ever active."""

from __future__ import annotations

import pytest
import torch
from _line import Line

import rankprune as rp
from _nets import cnn, sgd, train


def test_the_authors_settings_at_their_length_of_training() -> None:
    for cls, every, updates in ((rp.methods.RigL, 4_000, 24), (rp.methods.SET, 1_500, 65)):
        method = cls.itop(97_750)
        assert (method.plan.every, method.grow, method.plan.update_end, method.distribution) == (every, 0.5, 1.0, "erk")
        assert len(method.updates(97_750)) == updates
        assert len(cls.itop(5 * 97_750).updates(5 * 97_750)) == 5 * 97_750 // every  # longer: more weights explored


@pytest.mark.parametrize("cls", [rp.methods.RigL, rp.methods.SET])
def test_a_shorter_training_has_as_many_updates(cls: type) -> None:
    updates = len(cls.itop(97_750).updates(97_750))  # type: ignore[attr-defined]
    for steps in (1_000, 9_775, 40_000):
        assert len(cls.itop(steps).updates(steps)) == pytest.approx(updates, abs=2)  # type: ignore[attr-defined]
    assert cls.itop(5).plan.every == 1  # type: ignore[attr-defined]


def test_other_settings_may_be_given() -> None:
    method = rp.methods.RigL.itop(1_000, every=7, grow_init="gradient")
    assert (method.plan.every, method.grow, method.grow_init) == (7, 0.5, "gradient")


def test_explored_by_hand() -> None:
    """Three of six; each update drops the smallest one and grows at a new place: 3, 4, 5 of 6, then one returns."""
    line = Line([0.0] * 6, rp.methods.RigL(every=1, update_end=1000, grow=0.4), 0.5, 4000, lr=0.0)
    line.activate([0.9, 0.8, 0.1, 0.0, 0.0, 0.0], [0, 1, 2])
    line.layer.state["explored"].copy_(line.layer.mask)
    assert line.sp.explored == pytest.approx(3 / 6)
    shares = []
    for place in (3, 4, 2):
        line.step([float(i == place) for i in range(6)])
        assert line.mask == [0, 1, place]
        shares.append(line.sp.explored)
    assert shares == pytest.approx([4 / 6, 5 / 6, 5 / 6])
    assert "explored 83.33 %" in str(line.sp.summary())


@pytest.mark.parametrize("name", ["rigl", "set", "svite", "snfs", "dsr", "east"])
def test_explored_is_the_union_of_all_masks_and_survives_a_resume(name: str) -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, name, sparsity=0.9, total_steps=40, every=1)
    union = {key: mask.clone() for key, mask in sp.masks.items()}
    assert sp.explored == pytest.approx(1 - sp.sparsity)

    def look(step: int) -> None:
        for key, mask in sp.masks.items():
            union[key] |= mask
        assert sp.explored == sum(int(m.sum()) for m in union.values()) / 2008

    train(model, optimizer, 1, 20, look)
    other = cnn(3)
    again = rp.attach(other, sgd(other), name, sparsity=0.9, total_steps=40, every=1)
    again.load_state_dict(sp.state_dict())
    assert again.explored == sp.explored > 0.15
    train(model, optimizer, 21, 40, look)


def test_methods_that_do_not_explore_have_no_rate() -> None:
    for name in ("gmp", "magnitude", "rpg", "feather"):  # rpg starts dense: all are explored
        model = cnn()
        sp = rp.attach(model, sgd(model), name, sparsity=0.9, total_steps=400)
        assert sp.explored is None
        assert "explored" not in str(sp.summary())


def test_random_growth_explores_as_probability_says() -> None:
    """A place that was never active is drawn at an update with chance g d / (1 - d + g d): d the density, g `grow`."""
    torch.manual_seed(0)
    model = torch.nn.Linear(100, 100, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = rp.methods.SET.itop(200)
    sp = rp.attach(model, optimizer, method, sparsity=0.9, total_steps=200)
    for _ in range(200):
        model.weight.grad = torch.zeros_like(model.weight)
        optimizer.step()
    updates, d, g = len(method.updates(200)), 0.1, 0.5
    assert updates == 66
    assert sp.explored == pytest.approx(1 - (1 - d) * (1 - g * d / (1 - d + g * d)) ** updates, abs=0.01)
    assert sp.explored is not None
    assert sp.explored > 0.95
