"""SAFE: the updates of ADMM by hand, both ways to climb, the timetable, and an independent run of the algorithm."""

from __future__ import annotations

import math

import pytest
import torch
from _line import Line
from torch import Tensor, nn

import rankprune as rp
from _nets import batch, cnn, sgd, train

CE = nn.functional.cross_entropy


def test_splitting_and_the_dual_by_hand() -> None:
    """Two of four stay, no gradient, λ = 0, 1 - cos(π/4) and 1 at the first three of four steps.

    At attach z = (0.5, -0.4, 0, 0) and u = 0. Step 1 pulls nothing; after it u is what z lacks, (0, 0, 0.3, 0.1). Step 2
    pulls the third by 0.1 · λ · (0.3 + 0.3); x + u is then larger in the third place than in the second, which leaves z.
    Step 3 pulls the second by 0.1 · (x + u) = -0.08 and the third by 0.1 (x - z).
    """
    line = Line([0.5, -0.4, 0.3, 0.1], rp.methods.SAFE(rho=0.0, lam=2.0, dual_every=1, project_at=4), 0.5, 10)
    state = line.layer.state
    assert state["z"][0].tolist() == pytest.approx([0.5, -0.4, 0.0, 0.0])
    line.step(0.0)
    assert line.weight.tolist() == pytest.approx([0.5, -0.4, 0.3, 0.1])
    assert state["u"][0].tolist() == pytest.approx([0.0, 0.0, 0.3, 0.1])
    line.step(0.0)
    third, fourth = (x - 0.1 * (1 - math.cos(math.pi / 4)) * 2 * x for x in (0.3, 0.1))
    assert line.weight.tolist() == pytest.approx([0.5, -0.4, third, fourth])
    assert state["z"][0].tolist() == pytest.approx([0.5, 0.0, third + 0.3, 0.0])
    assert state["u"][0].tolist() == pytest.approx([0.0, -0.4, 0.0, fourth + 0.1])
    line.step(0.0)
    expected = [0.5, -0.4 + 0.08, third + 0.03, fourth - 0.1 * (2 * fourth + 0.1)]
    assert line.weight.tolist() == pytest.approx(expected)
    line.step([0.0, 0.0, 0.0, 10.0])  # the fourth step cuts by |x| alone, which the gradient has made large in the last
    assert line.mask == [0, 3]


def test_the_previous_gradient_is_climbed_and_does_not_add_up() -> None:
    """After a step with gradient (3, 4, 0, 0) and λ = 0 the weights hold x + ρ (0.6, 0.8, 0, 0); the next steps x."""
    line = Line([0.5, -0.4, 0.3, 0.1], rp.methods.SAFE(rho=0.2, lam=0.0), 0.5, 100)
    line.step([3.0, 4.0, 0.0, 0.0])
    x = [0.5 - 0.3, -0.4 - 0.4, 0.3, 0.1]
    assert line.layer.state["latent"][0].tolist() == pytest.approx(x)
    assert line.weight.tolist() == pytest.approx([x[0] + 0.12, x[1] + 0.16, 0.3, 0.1])
    line.step([0.0, 0.0, 0.0, 2.0])
    assert line.layer.state["latent"][0].tolist() == pytest.approx([x[0], x[1], 0.3, -0.1])
    assert line.weight.tolist() == pytest.approx([x[0], x[1], 0.3, 0.1])
    line.step(0.0)
    assert torch.equal(line.weight, line.layer.state["latent"][0])


def quadratic(start: Tensor, curvature: Tensor, target: Tensor, steps: int, sparsity: float, lr: float, **hyper: object) -> tuple[nn.Module, rp.Sparsifier]:
    """Training of ½ (w - t)ᵀA(w - t) with a closure."""
    model = nn.Linear(len(start), 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    sp = rp.attach(model, optimizer, "safe", sparsity=sparsity, total_steps=steps, **hyper)  # type: ignore[arg-type]

    def closure() -> Tensor:
        optimizer.zero_grad()
        away = model.weight[0] - target
        loss = away @ curvature @ away / 2
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return model, sp


@pytest.mark.parametrize("ascent", ["previous", "closure"])
def test_against_the_algorithm_written_out(ascent: str) -> None:
    """x - lr · momentum of ∇f(x + ε) + λ(t) (x - z + u); every 4 steps z = top_k(x + u), u += x - z; cut at the end."""
    torch.manual_seed(0)
    n, k, steps, lr, rho, lam = 10, 4, 40, 0.02, 0.3, 0.7
    root = torch.randn(n, n, dtype=torch.float64)
    curvature, target, start = root @ root.T / n, torch.randn(n).double(), torch.randn(n).double()

    def slope(at: Tensor) -> Tensor:
        return curvature @ (at - target)

    def top(v: Tensor) -> Tensor:
        return torch.where(v.abs() >= v.abs().sort(descending=True).values[k - 1], v, 0.0)

    x, z, u, momentum, last = start.clone(), top(start), torch.zeros(n).double(), torch.zeros(n).double(), None
    for t in range(steps):
        g = slope(x) if ascent == "closure" else last
        there = x if g is None else x + rho * g / g.norm()
        last = slope(there)
        momentum = 0.9 * momentum + last + lam * (1 - math.cos(math.pi * t / steps)) / 2 * (x - z + u)
        x = x - lr * momentum
        if (t + 1) % 4 == 0 and t + 1 < steps:
            z = top(x + u)
            u = x + u - z
    hyper = {"rho": rho, "lam": lam, "dual_every": 4, "project_at": 1.0, "ascent": ascent}
    model, sp = quadratic(start, curvature, target, steps, 0.6, lr, **hyper)
    assert torch.allclose(model.weight.detach()[0], top(x), atol=1e-12)
    assert sp.finalize().kept == k


def test_admm_brings_the_weights_to_the_sparse_ones() -> None:
    """With curvature 1 the best two of t stay as they are, and the pull has nearly emptied the others by the cut."""
    target = torch.tensor([1.0, -0.9, 0.3, 0.2, 0.1]).double()
    hyper = {"rho": 0.0, "lam": 0.5, "dual_every": 10, "project_at": 599}
    seen: list[Tensor] = []
    model = nn.Linear(5, 1, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sp = rp.attach(model, optimizer, "safe", sparsity=0.6, total_steps=600, **hyper)  # type: ignore[arg-type]
    for _ in range(600):
        (model.weight - target).square().sum().div(2).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(model.weight.detach()[0].clone())
    assert seen[597][:2].tolist() == pytest.approx([1.0, -0.9], abs=1e-2)
    assert seen[597][2:].abs().max() < 0.02  # while dense training alone would leave 0.3
    assert sp.finalize().kept == 2


class Noisy(nn.Module):
    """BatchNorm and dropout: what a second look must not disturb."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def test_a_second_look_leaves_statistics_and_random_numbers_as_one_would() -> None:
    """With ρ too small to matter, two looks are one: the same dropout, running statistics and generator."""
    found = []
    for rho in (1e-30, 0.0):
        model = Noisy()
        optimizer = sgd(model)
        rp.attach(model, optimizer, "safe", sparsity=0.9, total_steps=10, rho=rho, ascent="closure", lam=0.0)
        torch.manual_seed(7)
        calls = []
        for step in range(1, 6):
            x, y = batch(step)

            def closure() -> Tensor:
                calls.append(1)  # noqa: B023
                optimizer.zero_grad()  # noqa: B023
                loss = CE(model(x), y)  # noqa: B023
                loss.backward()
                return loss

            optimizer.step(closure)
        found.append((len(calls), torch.get_rng_state(), [t.clone() for t in model.state_dict().values()]))
    (twice, one, a), (once, two, b) = found
    assert (twice, once) == (10, 5)
    assert torch.equal(one, two)
    assert all(torch.equal(x, y) for x, y in zip(a, b))


def test_gradients_accumulated_before_count_in_both_looks() -> None:
    """Half of the batch before the step and half in a closure that zeroes nothing: the sum of both gradients."""
    model = nn.Linear(4, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rp.attach(model, optimizer, "safe", sparsity=0.5, total_steps=10, rho=0.5, lam=0.0, ascent="closure")
    (model.weight * torch.tensor([1.0, 0.0, 0.0, 0.0])).sum().backward()

    def closure() -> Tensor:
        loss = model.weight[0, 1].square() / 2
        loss.backward()
        return loss

    optimizer.step(closure)
    g = torch.tensor([1.0, 2.0])
    second = 2.0 + 0.5 * 2.0 / float(g.norm())
    assert model.weight.detach()[0].tolist() == pytest.approx([0.9, 2 - 0.1 * second, 3.0, 4.0])


def test_sam_needs_a_closure_until_the_mask_stands() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "safe", sparsity=0.9, total_steps=6, ascent="closure", project_at=3)
    with pytest.raises(ValueError, match=r"safe evaluates the loss twice in a step: call optimizer.step\(closure\)"):
        train(model, optimizer, 1, 1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        x, y = batch(1)
        loss = CE(model(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    train(model, optimizer, 4, 6)
    sp.finalize()


def test_dense_until_the_cut_and_the_mask_stands_after_it() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "safe", sparsity=0.9, total_steps=20)
    masks: dict[int, list[Tensor]] = {}
    train(model, optimizer, 1, 20, lambda t: masks.update({t: [m.clone() for m in sp.masks.values()]}))
    assert all(bool(m.all()) for t in range(1, 18) for m in masks[t])
    assert all(torch.equal(a, b) for t in (18, 19) for a, b in zip(masks[t], masks[20]))
    assert sum(int(m.sum()) for m in masks[18]) == sp.groups[0].final == sp.finalize().kept
    assert set(sp.layers[0].state) == {"latent"}


def test_an_early_end_leaves_x_without_the_perturbation() -> None:
    line = Line([0.5, -0.4, 0.3, 0.1], rp.methods.SAFE(rho=0.2, lam=0.0), 0.5, 100)
    line.step([3.0, 4.0, 0.0, 0.0])
    assert line.weight.tolist() == pytest.approx([0.32, -0.64, 0.3, 0.1])
    line.sp.finalize(project=True)
    assert line.weight.tolist() == pytest.approx([0.0, -0.8, 0.3, 0.0])


@pytest.mark.parametrize(
    ("steps", "period", "lam"),
    [(78_200, 32, 1e-3), (200_000, 32, 1e-3), (7_820, 32, 1e-2), (1_000, 9, 0.0782), (100, 1, 0.1)],
)
def test_short_runs_split_more_often_and_pull_harder(steps: int, period: int, lam: float) -> None:
    method = rp.methods.SAFE()
    assert method.period(steps) == period
    assert method.strength(1, steps) == 0.0
    assert method.strength(method.updates(steps)[-1] + 1, steps) == pytest.approx(lam)


def test_settings_are_checked() -> None:
    for wrong, message in (
        ({"ascent": "other"}, "ascent='other' is unknown: use 'previous' or 'closure'"),
        ({"rho": -1.0}, "rho=-1.0 is not a number of 0 or more"),
        ({"lam": "1"}, "lam='1' is not a number of 0 or more"),
        ({"lam": math.nan}, "lam=nan is not a number of 0 or more"),
        ({"dual_every": 0}, "every=0 is not a number of steps"),
    ):
        with pytest.raises(ValueError, match=message):
            rp.methods.SAFE(**wrong)  # type: ignore[arg-type]
