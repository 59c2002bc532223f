"""Sign-In: the split, a step by hand, the flow in closed form, and two factors trained by torch's own optimizers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from _line import Line
from torch import nn

import rankprune as rp
from _nets import adamw, batch, cnn, sgd, train
from rankprune.core.budget import layer_counts
from rankprune.methods.sign_in import split


def test_the_split_by_hand() -> None:
    m, w = split(torch.tensor([2.0, -2.0, 0.0]), 3.0)
    assert m.tolist() == pytest.approx([2.0, 2.0, math.sqrt(3)])
    assert w.tolist() == pytest.approx([1.0, -1.0, 0.0])
    theta = torch.linspace(-5, 5, 101, dtype=torch.float64)
    m, w = split(theta, 1.0)
    assert torch.allclose(m * w, theta)
    assert torch.allclose(m**2 - w**2, torch.ones_like(theta))


def line(values: list[float], steps: int = 100, lr: float = 0.1, **fields: Any) -> Line:
    made = Line([1.0] * len(values), rp.methods.SignIn(**fields), 0.5, steps, lr=lr)
    made.sp.set_masks({"weight": torch.tensor([[v != 0 for v in values]])})
    made.set(values)
    return made


def test_one_step_by_hand() -> None:
    """θ = 2 at β = 3 is m = 2, w = 1; with g = 0.5 and lr = 0.1, w' = 1 - 0.1 · 2 · 0.5 and m' = 2 - 0.1 · 1 · 0.5."""
    made = line([2.0, 0.0], resets=1, beta=3.0)
    made.step([0.5, 7.0])
    assert made.weight.tolist() == pytest.approx([0.9 * 1.95, 0.0])
    assert made.layer.state["factor"][0, 0] == pytest.approx(1.95)
    made.step([1.0, 7.0])
    assert float(made.weight[0]) == pytest.approx((0.9 - 0.1 * 1.95) * (1.95 - 0.1 * 0.9))


@pytest.mark.parametrize(("start", "grad"), [(0.3, 1.0), (-0.2, -0.5), (0.0, 2.0)])
def test_the_flow_in_closed_form_crosses_zero(start: float, grad: float) -> None:
    """dθ = -g √(4θ² + β²) dt has θ(t) = β/2 sinh(asinh(2θ₀/β) - 2 g t)."""
    lr, steps = 1e-4, 4000
    made = line([start or 1.0, 0.0], steps=steps, lr=lr, resets=1, beta=1.0)
    made.set([start, 0.0])
    for _ in range(steps):
        made.step([grad, 0.0])
    expected = 0.5 * math.sinh(math.asinh(2 * start) - 2 * grad * lr * steps)
    assert float(made.weight[0]) == pytest.approx(expected, rel=2e-3)
    assert expected * grad < 0 <= start * grad  # the sign has flipped


@pytest.mark.parametrize("name", ["sgd", "nesterov", "adamw", "adam"])
def test_the_factors_follow_the_optimizer_as_two_parameters_would(name: str) -> None:
    """Against a network of explicit factors under torch's own optimizer, with weight decay, a falling rate and resets."""
    torch.manual_seed(0)
    x, y = torch.randn(16, 6).double(), torch.randn(16, 4).double()
    model = nn.Linear(6, 4, bias=False).double()
    start = model.weight.detach().clone()
    make: dict[str, Any] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
        "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, foreach=True),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1),
        "adam": lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.1),
    }
    optimizer = make[name](model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    sp = rp.attach(model, optimizer, "sign_in", sparsity=0.5, total_steps=12, resets=2, beta=0.5)
    mask = sp.masks["weight"].clone()
    m, w = (nn.Parameter(t) for t in split(start * mask, 0.5))
    other = make[name]([m, w])
    second = torch.optim.lr_scheduler.StepLR(other, 4, 0.5)
    for step in range(1, 13):
        for opt, weight in ((optimizer, lambda: model.weight), (other, lambda: m * w * mask)):
            opt.zero_grad()
            (x @ weight().T - y).square().mean().backward()
            opt.step()
        schedule.step()
        second.step()
        if step in (6, 12):
            with torch.no_grad():
                for parameter, value in zip((m, w), split(m * w, 0.5)):
                    parameter.copy_(value)
        assert torch.allclose(model.weight, m * w * mask, rtol=1e-9, atol=1e-12), step
    assert torch.equal(sp.masks["weight"], mask)


def test_clipping_acts_on_both_factors_alike() -> None:
    made = line([2.0, 0.0], resets=1, beta=3.0)
    made.step([0.0, 0.0])  # the weights set by hand are split
    made.optimizer.zero_grad()
    (made.model.weight * torch.tensor([[0.5, 0.0]])).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(made.model.parameters(), 0.25)
    assert float(norm) == pytest.approx(1.0)  # g m: what the optimizer uses
    made.optimizer.step()
    assert made.weight.tolist() == pytest.approx([(1 - 0.1 * 0.25) * (2 - 0.1 * 0.25 / 2), 0.0])


def test_a_reset_restores_the_scale_and_not_the_weight() -> None:
    model = cnn(dtype=torch.float64)
    optimizer = sgd(model, lr=0.2)
    sp = rp.attach(model, optimizer, "sign_in", sparsity=0.8, total_steps=40, resets=2)
    gaps = []

    def look(step: int) -> None:
        m, w = sp.layers[0].state["factor"], sp.layers[0].state["latent"]
        gaps.append(float((m**2 - w**2 - 1)[sp.layers[0].mask].abs().max()))
        assert torch.equal(model[0].weight.detach(), torch.where(sp.layers[0].mask, m * w, 0.0))

    train(model, optimizer, 1, 40, look)
    assert [step for step, gap in enumerate(gaps, 1) if gap < 1e-9] == [20, 40]
    assert gaps[18] > 1e-4


def test_the_mask_is_random_with_erk_counts_or_that_of_the_zeros() -> None:
    model = cnn()
    sp = rp.attach(model, sgd(model), "sign_in", sparsity=0.9, total_steps=10)
    assert [int(m.sum()) for m in sp.masks.values()] == layer_counts([m.shape for m in sp.masks.values()], 201, "erk")
    other = cnn()
    report = rp.prune(other, "synflow", sparsity=0.9, data=[batch(1)])
    before = other[0].weight.detach().clone()
    again = rp.attach(other, adamw(other), "sign_in", total_steps=10)
    assert torch.allclose(other[0].weight, before)
    assert torch.equal(again.masks["0.weight"], before != 0)
    assert again.summary().kept == report.kept


def test_loaded_weights_are_split_anew() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "sign_in", sparsity=0.8, total_steps=20, resets=1)
    train(model, optimizer, 1, 5)
    model.load_state_dict(cnn(seed=4).state_dict())
    train(model, optimizer, 6, 6)
    expected = cnn(seed=4)[8].weight.detach() * sp.masks["8.weight"]
    assert torch.allclose(model[8].weight, expected, atol=0.1)
    assert int((model[8].weight.sign() != expected.sign()).sum()) < 20


def test_wrong_settings_and_optimizers() -> None:
    with pytest.raises(ValueError, match=r"beta=0\.0 lets no sign flip"):
        rp.methods.SignIn(beta=0.0)

    class Once(torch.optim.SGD):
        def __init__(self, parameters: Any, secret: int) -> None:
            super().__init__(parameters, lr=0.1)

    model = cnn()
    with pytest.raises(ValueError, match="sign_in cannot make a second Once for its factors: use SGD or AdamW"):
        rp.attach(model, Once(model.parameters(), 1), "sign_in", sparsity=0.8, total_steps=20)
