"""Where grown weights start, for every method that grows."""

from __future__ import annotations

import io

import pytest
import torch
from _line import Line

import rankprune as rp
from _nets import cnn, sgd, train

GROWING = ["rigl", "set", "rpg", "granet", "svite", "snfs", "dsr", "east"]
VALUES, ACTIVE = [0.9, -0.8, 0.7, 0.1, 0.0, 0.0, 0.0, 0.0], [0, 1, 2, 3]
GRADS = [0.0, 0.0, 0.0, 0.0, 0.5, -2.0, 0.25, 0.0]


def grown(how: str, start: list[float] | None = None) -> float:
    """The value of the one weight, at 5, that RigL grows in place of the smallest one."""
    method = rp.methods.RigL(every=1, update_end=100, grow=0.3, grow_init=how)
    line = Line(start or [0.0] * 8, method, 0.5, 400, lr=0.1)
    line.activate(VALUES, ACTIVE)
    line.step(GRADS)
    assert line.mask == [0, 1, 2, 5]
    assert line.weight[[0, 1, 2]].tolist() == pytest.approx(VALUES[:3])  # what stays keeps its value
    assert line.weight[[3, 4, 6, 7]].count_nonzero() == 0
    return float(line.weight[5])


def test_by_hand() -> None:
    assert grown("zero") == 0.0
    assert grown("gradient") == pytest.approx(0.1 * 2.0)  # -lr · g
    assert grown("original", start=[1.0, 2.0, 3.0, 4.0, 5.0, -6.0, 7.0, 8.0]) == -6.0


def test_zero_is_the_default() -> None:
    assert {rp.method_info(name).cls.__dataclass_fields__["grow_init"].default for name in GROWING} == {"zero"}


def test_random_values_are_normal_and_a_tenth_of_the_active_ones() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(200, 200, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = rp.methods.RigL(every=1, update_end=100, grow=0.9, grow_init="random")
    sp = rp.attach(model, optimizer, method, sparsity=0.5, total_steps=400)
    before = sp.masks["weight"].clone()
    rms = float(model.weight[before].square().mean().sqrt())
    model.weight.grad = torch.rand_like(model.weight)
    optimizer.step()
    new = model.weight.detach()[sp.masks["weight"] & ~before]
    kept = model.weight.detach()[sp.masks["weight"] & before]
    expected = 0.1 * float((kept.square().sum() / 20_000).sqrt())  # over all that are active, the new ones at 0
    assert 0.05 * rms < expected < 0.1 * rms
    assert len(new) > 8_000
    assert float(new.std()) == pytest.approx(expected, rel=0.05)
    assert abs(float(new.mean())) < 5 * expected / len(new) ** 0.5


def test_a_weight_that_returns_at_once_keeps_its_value() -> None:
    """RigL may regrow what it just dropped; that one was never out."""
    method = rp.methods.RigL(every=1, update_end=100, grow=0.3, grow_init="gradient")
    line = Line([0.0] * 8, method, 0.5, 400)
    line.activate(VALUES, ACTIVE)
    line.step([0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0])
    assert line.mask == ACTIVE
    assert line.weight.tolist() == pytest.approx(VALUES)


def test_an_active_zero_that_stays_is_not_grown() -> None:
    method = rp.methods.RigL(every=1, update_end=100, grow=0.3, grow_init="gradient")
    line = Line([0.0] * 8, method, 0.5, 400)
    line.activate([0.9, 0.0, 0.7, 0.8, 0, 0, 0, 0], ACTIVE)
    line.step([0.0, 3.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0])  # 1 has the largest gradient: dropped, and grown again
    assert line.mask == ACTIVE
    assert float(line.weight[1]) == 0.0


@pytest.mark.parametrize("how", ["gradient", "random", "original"])
@pytest.mark.parametrize("name", GROWING)
def test_every_growing_method_takes_it_and_resumes(name: str, how: str) -> None:
    def start(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, rp.Sparsifier]:
        model = cnn(seed)
        optimizer = sgd(model)
        return model, optimizer, rp.attach(model, optimizer, name, sparsity=0.8, total_steps=40, every=1, grow_init=how)

    model, optimizer, sp = start(0)
    found: dict[str, bool] = {"grown": False}
    masks = {key: mask.clone() for key, mask in sp.masks.items()}

    def look(step: int) -> None:
        for key, mask in sp.masks.items():
            new = mask & ~masks[key]
            found["grown"] |= bool((dict(model.named_parameters())[key].detach()[new] != 0).any())
            masks[key] = mask.clone()

    train(model, optimizer, 1, 20, look)
    assert found["grown"]  # at once, before any step has trained it
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), sp.state_dict()], file)
    train(model, optimizer, 21, 40)
    weights, moments, state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    again, other, resumed = start(9)
    again.load_state_dict(weights)
    other.load_state_dict(moments)
    resumed.load_state_dict(state)
    train(again, other, 21, 40)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values()))
    sp.finalize()


def test_unknown_words_fail_early() -> None:
    model = cnn()
    with pytest.raises(ValueError, match="grow_init='ones' is unknown: use 'zero' or 'gradient' or 'random' or 'original'"):
        rp.attach(model, sgd(model), "rigl", sparsity=0.8, total_steps=24, every=3, grow_init="ones")
