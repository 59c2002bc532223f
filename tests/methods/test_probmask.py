"""ProbMask: the projection against independent solvers, the relaxed masks, the exact end."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from _line import Line
from hypothesis import given, settings
from hypothesis import strategies as st

import rankprune as rp
from _nets import cnn, sgd, train
from rankprune.core.shards import Shards
from rankprune.methods.probmask import logit, project


def layers(*values: list[float], costs: tuple[int, ...] = (1, 1)) -> list[SimpleNamespace]:
    states = [{"probability": torch.tensor(v, dtype=torch.float64)} for v in values]
    return [SimpleNamespace(state=state, shards=Shards(), cost=cost) for state, cost in zip(states, costs)]


@pytest.mark.parametrize(("costs", "budget"), [((1, 1), 2.5), ((4, 1), 6.0)])
def test_projection_is_the_nearest_point(costs: tuple[int, int], budget: float) -> None:
    """Against a quadratic program, over two layers at once; also where a weight of the first costs more."""
    optimize = pytest.importorskip("scipy.optimize")
    first, second = [0.9, 0.2, 1.3, -0.1], [0.5, 0.7, 1.0]
    found = layers(first, second, costs=costs)
    project(found, budget)  # type: ignore[arg-type]
    point = torch.tensor(first + second, dtype=torch.float64).numpy()
    prices = torch.tensor([costs[0]] * 4 + [costs[1]] * 3).numpy()
    best = optimize.minimize(
        lambda x: ((x - point) ** 2).sum(), [0.3] * 7, jac=lambda x: 2 * (x - point), bounds=[(0, 1)] * 7, method="SLSQP",
        constraints={"type": "ineq", "fun": lambda x: budget - (prices * x).sum()}, options={"ftol": 1e-14},
    )  # fmt: skip
    assert torch.cat([s.state["probability"] for s in found]).tolist() == pytest.approx(best.x.tolist(), abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-0.5, 1.5), min_size=2, max_size=30), st.floats(0.05, 0.95))
def test_projection_is_feasible_tight_and_idempotent(values: list[float], share: float) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    budget = share * len(values)
    start = torch.tensor(values, dtype=torch.float64)
    found = layers(values)
    project(found, budget)  # type: ignore[arg-type]
    after = found[0].state["probability"].clone()
    assert float(after.sum()) <= budget + 1e-9
    if float(start.clamp(0, 1).sum()) <= budget:
        assert torch.equal(after, start.clamp(0, 1))
    else:
        assert float(after.sum()) == pytest.approx(budget, abs=2e-3)
        shift = optimize.brentq(lambda v: float((start - v).clamp(0, 1).sum()) - budget, 0, 3)
        assert torch.allclose(after, (start - shift).clamp(0, 1), atol=2e-3)  # one shift for all inside
    project(found, budget)  # type: ignore[arg-type]
    assert torch.allclose(found[0].state["probability"], after, atol=1e-9)


def test_cold_masks_are_draws() -> None:
    """As T grows, σ((logit s + logistic noise) T) is 1 with chance s; at s = 0 and 1 it is certain."""
    chance = torch.full((200_000,), 0.3, dtype=torch.float64)
    noise = torch.rand(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    soft = torch.sigmoid((logit(chance) + logit(noise)) * 1e4)
    assert float(soft.mean()) == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / 200_000))
    assert float(((soft > 1e-6) & (soft < 1 - 1e-6)).double().mean()) < 1e-3
    for sure in (0.0, 1.0):
        drawn = torch.sigmoid(logit(torch.full((1000,), sure)) + logit(noise[:1000].float()))
        assert torch.allclose(drawn, torch.tensor(sure), atol=1e-6)


def test_gradients_of_weight_and_probability() -> None:
    """Against autograd through w · σ((logit s + noise) T), with the noise and T that were used."""
    torch.manual_seed(0)
    line = Line(torch.randn(50).tolist(), rp.methods.ProbMask(prune_start=0.0, prune_end=0.2), 0.5, 20)
    for _ in range(6):
        line.step(torch.randn(50).tolist())
    layer = line.layer
    chance = layer.state["probability"].double().requires_grad_()
    latent = layer.state["latent"].double().requires_grad_()
    heat = layer.state["temperature"]
    assert heat == pytest.approx(1 / (0.97 * (1 - 6 / 18) + 0.03))  # masks are fixed at step 18
    fixed = layer.state["soft"].double().clamp(1e-12, 1 - 1e-12)
    noise = torch.logit(fixed) / heat - torch.logit(chance.detach().clamp(1e-12, 1 - 1e-12))
    grads = torch.randn(1, 50, dtype=torch.float64)
    inside = (chance.detach() > 1e-3) & (chance.detach() < 1 - 1e-3)
    (latent * torch.sigmoid((torch.logit(chance) + noise) * heat) * grads)[inside].sum().backward()
    got = line.group.method.latent_grad(layer, grads.float())
    assert torch.allclose(got.double()[inside], latent.grad[inside], atol=1e-5)
    layer.parameter.grad = got
    line.group.method.note_grad(layer)
    slope = layer.state["slope"].double() * heat
    assert int(inside.sum()) > 10
    assert torch.allclose(slope[inside], chance.grad[inside], rtol=1e-3, atol=1e-4)


def test_the_sum_follows_the_schedule_and_the_end_is_exact() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "probmask", sparsity=0.9, total_steps=50)
    total, final = sp.groups[0].total, sp.groups[0].final

    def watch(t: int) -> None:
        expected = sum(float(s.state["probability"].double().sum()) for s in sp.layers)
        ramp = min(max((t - 8) / (30 - 8), 0), 1)
        if t < 45:
            assert expected <= final + (total - final) * (1 - ramp) ** 3 + 0.5
            assert all(m.all() for m in sp.masks.values())
        else:
            assert sum(int(m.sum()) for m in sp.masks.values()) == final

    train(model, optimizer, 1, 50, watch)
    for layer in sp.layers:  # the likeliest of each layer stayed
        assert layer.state["probability"][layer.mask].min() >= layer.state["probability"][~layer.mask].max()
    sp.finalize()


def test_a_ramp_without_length_is_one_cut() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "probmask", sparsity=0.9, total_steps=20, prune_start=10, prune_end=10)
    method, group = sp.groups[0].method, sp.groups[0]
    sums = []
    for step in (1, 9, 10, 20):
        group.step = step
        sums.append(method.expected(group))  # type: ignore[attr-defined]
    assert sums == [group.total, group.total, group.final, group.final]


def test_probabilities_take_the_steps_of_adam() -> None:
    """Against torch's, with the gradient through σ((logit s + noise) T) and a rate that falls along a cosine."""
    torch.manual_seed(0)
    line = Line(torch.randn(40).tolist(), rp.methods.ProbMask(prune_start=0.9, prune_end=1.0, score_lr=0.02), 0.5, 20)
    layer = line.layer
    layer.state["probability"].copy_(torch.linspace(0.2, 0.8, 40)[None])
    layer.state["soft"].copy_(torch.rand(1, 40))  # as if it had been drawn
    twin = torch.nn.Parameter(layer.state["probability"].clone())
    adam = torch.optim.Adam([twin], lr=0.02)
    for step in range(1, 6):
        grads, heat, m = torch.randn(1, 40), layer.state.get("temperature", 1.0), layer.state["soft"].clone()
        s = twin.detach()
        twin.grad = grads * layer.state["latent"] * heat * m * (1 - m) / (s * (1 - s))
        adam.param_groups[0]["lr"] = 0.02 * (1 + math.cos(math.pi * step / 18)) / 2
        line.step(grads[0].tolist())
        adam.step()
        assert torch.allclose(layer.state["probability"], twin.detach(), atol=1e-5), step


@pytest.mark.parametrize(("steps", "rate"), [(120_000, 6e-3), (60_000, 6e-3), (6_000, 6e-2), (60, 0.3)])
def test_the_rate_of_short_runs(steps: int, rate: float) -> None:
    model = cnn()
    group = rp.attach(model, sgd(model), "probmask", sparsity=0.9, total_steps=steps).groups[0]
    assert group.method.first_rate(group) == pytest.approx(rate)  # type: ignore[attr-defined]


@pytest.mark.parametrize("fix_at", [0.65, 0.9])
def test_the_temperature_ends_where_masks_are_fixed(fix_at: float) -> None:
    """The authors' 300 epochs end at T = 1/(0.97/300 + 0.03) = 30; the steps after the masks are fixed are not theirs."""
    line = Line(torch.randn(50).tolist(), rp.methods.ProbMask(fix_at=fix_at), 0.5, 400)
    last = round(400 * fix_at) - 1
    for _ in range(last):
        line.step(0.1)
    assert line.layer.state["temperature"] == pytest.approx(1 / (0.97 / (last + 1) + 0.03))
    assert line.layer.state["temperature"] > 29
