"""The timetable of mask updates that follows from the number of steps, and what it is worth in accuracy."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import cnn, sgd, train
from rankprune.core.schedules import choose_every

PERIODIC = [name for name in rp.list_methods() if rp.method_info(name).cls.plan.periodic]
GROWING = [name for name in PERIODIC if issubclass(rp.method_info(name).cls, rp.DropGrow)]


def steps_of(name: str, total_steps: int, **hyper: Any) -> Sequence[int]:
    return rp.method_info(name).cls(0.9, **hyper).updates(total_steps)


def test_the_rule_by_hand() -> None:
    def window(steps: int) -> Any:
        return lambda every: steps // every

    assert choose_every(window(100_000)) == 100  # the authors' number: 1,000 updates
    assert choose_every(window(5_000)) == 100  # 50 updates are enough to keep it
    assert choose_every(window(4_999)) == 49  # 49 are not: the longest period with 100 updates
    assert choose_every(window(300)) == 3
    assert choose_every(window(99)) == 1
    assert choose_every(window(300), shortest=5) == 5
    assert choose_every(window(4), shortest=5) == 4  # a shorter one only where nothing else fits


def test_the_periodic_methods_are_all_here() -> None:
    assert {"dsr", "gmp", "granet", "rigl", "rpg", "set", "snfs", "svite"} <= set(PERIODIC)


@pytest.mark.parametrize("name", PERIODIC)
@pytest.mark.parametrize("total_steps", [3, 10, 40, 138, 200, 744, 3000, 20_000, 100_000])
def test_every_length_of_training_has_a_timetable(name: str, total_steps: int) -> None:
    method = rp.method_info(name).cls(0.9)
    every, steps = method.plan.period(method.run(total_steps)), method.updates(total_steps)
    assert 1 <= every <= 100
    assert len(steps) >= min(total_steps // 10, 50)
    assert list(steps) == list(steps_of(name, total_steps, every=every))
    if len(steps_of(name, total_steps, every=100) if total_steps > 200 else ()) >= 50:
        assert every == 100
    if name in GROWING:
        assert steps[-1] < total_steps  # what is grown at the last step would stay at 0
    if method.replaces_optimizer_step():
        assert len(steps) <= (total_steps + 1) / 2  # enough optimizer steps are left


def test_the_target_is_reached_with_steps_left_to_train() -> None:
    """The first lines of the README with 200 steps: two updates before, the second of them at the last step."""
    for name in ("rpg", "gmp"):
        steps = steps_of(name, 200)
        assert len(steps) >= 90
        assert steps[-1] <= 182
    assert list(steps_of("rpg", 200, every=100)) == [100]  # also where the user chose the period
    assert list(steps_of("gmp", 200, every=100)) == [100, 200]  # no growth: nothing is lost


def test_attach_settles_the_period_for_its_own_length() -> None:
    method = rp.methods.RPG(0.9)
    model = cnn()
    sp = rp.attach(model, sgd(model), method, total_steps=1000)
    assert sp.groups[0].plan.every == 9  # 900 steps of pruning by 100 updates
    assert method.plan.every is None  # the object may be used again, for another length


def test_few_updates_are_said(recwarn: pytest.WarningsRecorder) -> None:
    model = cnn()
    with pytest.warns(UserWarning, match=r"rpg updates its masks 1 times in 200 steps \(every=100\): .* lower every"):
        rp.attach(model, sgd(model), "rpg", sparsity=0.9, total_steps=200, every=100).detach()
    with pytest.warns(UserWarning, match=r"rigl updates its masks 5 times in 40 steps"):
        rp.attach(model, sgd(model), "rigl", sparsity=0.9, total_steps=40).detach()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in PERIODIC:
            rp.attach(model, sgd(model), name, sparsity=0.9, total_steps=200).detach()
        rp.attach(model, sgd(model), "acdc", sparsity=0.9, total_steps=40).detach()  # few by design


def test_the_sparsifier_shows_its_timetable() -> None:
    model = cnn()
    optimizer = sgd(model)
    rules = {"0": {"method": "rigl", "sparsity": 0.5}, "3": {"method": "magnitude", "sparsity": 0.5}, "*": "gmp"}
    sp = rp.attach(model, optimizer, rules, sparsity=0.9, total_steps=200)
    train(model, optimizer, 1, 3)
    rigl, magnitude, gmp = sp.timetable
    assert (rigl.updates, rigl.first, rigl.last, rigl.reached, rigl.settled) == (29, 5, 145, 0, 55)
    assert (magnitude.updates, magnitude.settled) == (0, 200)
    assert (gmp.updates, gmp.first, gmp.last, gmp.reached, gmp.settled) == (181, 1, 181, 181, 19)
    assert repr(sp) == (
        f"Sparsifier(step 3 of 200, target sparsity {100 * sp.target:.4f} %)\n"
        "  rigl: 29 mask updates from step 5 to 145, every 5; final sparsity from the start; "
        "the final masks train for 55 of 200 steps\n"
        "  magnitude: pruned at attach; all 200 steps train the final masks\n"
        "  gmp: 181 mask updates from step 1 to 181, every 1; final sparsity from step 181 on; "
        "the final masks train for 19 of 200 steps"
    )


# -- what it is worth: a small CNN on the embedded data, 138 steps to 95 % --------------------------------------------

STEPS = 138


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    data = rp.data.load_data("fashion", image_size=14, batch_size=64)
    layers: list[nn.Module] = []
    for wide, out, stride in ((1, 16, 1), (16, 32, 2), (32, 64, 2)):
        layers += [nn.Conv2d(wide, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10))
    fit(model, data, None)
    return model, data


def fit(model: nn.Module, data: Any, method: str | None, **options: Any) -> float:
    """Train for 138 steps with a cosine rate, by a method or dense; test accuracy."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    sp = rp.attach(model, optimizer, method, sparsity=0.95, total_steps=STEPS, **options) if method else None
    model.train()
    for _, (x, y) in zip(range(STEPS), data.train(0)):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
    if sp is not None:
        assert sp.finalize().sparsity == pytest.approx(0.95, abs=1e-4)
    model.eval()
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).float() for x, y in data.test()]
    return float(torch.cat(right).mean())


@pytest.mark.parametrize(("name", "chosen"), [("rpg", 3), pytest.param("gmp", 3, marks=pytest.mark.long)])
def test_the_default_is_as_good_as_a_well_chosen_period(
    trained: tuple[nn.Module, Any], name: str, chosen: int
) -> None:
    model, data = trained
    default = fit(copy.deepcopy(model), data, name)
    assert default > fit(copy.deepcopy(model), data, name, every=chosen) - 0.05
    assert default > fit(copy.deepcopy(model), data, name, every=100) + 0.05  # the old default: all at once
