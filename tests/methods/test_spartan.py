"""Spartan: the soft top-k mask against SciPy's programs, its derivative against differences, the course by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from _line import Line
from torch import Tensor

import rankprune as rp
from _nets import cnn, sgd, train
from rankprune.methods.shared.soft_topk import Part, price, pull_back, shares

optimize = pytest.importorskip("scipy.optimize")


def numbers(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def soft(z: Tensor, costs: list[int], budget: float, beta: float) -> Tensor:
    parts = [Part(value.view(1), cost) for value, cost in zip(z, costs)]
    return shares(z, beta, price(parts, budget, beta, tolerance=1e-10))


def test_the_price_does_not_depend_on_the_default_device() -> None:
    parts = [Part(numbers(8).abs(), 1)]
    expected = price(parts, 3.0, 2.0)
    with torch.device("meta"):
        assert price(parts, 3.0, 2.0) == expected


@pytest.mark.parametrize("costs", [[1] * 8, [1, 2, 3, 4, 1, 2, 3, 4]])
def test_the_mask_maximises_value_plus_entropy(costs: list[int]) -> None:
    """max Σ c z m + (1/β) Σ c H(m) with Σ c m = k, by a general solver; mass is conserved."""
    z, beta, budget = numbers(8).abs(), 3.0, 0.4 * sum(costs)
    c = np.array(costs, dtype=float)

    def loss(m: np.ndarray) -> float:
        entropy = -(m * np.log(m) + (1 - m) * np.log(1 - m))
        return -float((c * (z.numpy() * m + entropy / beta)).sum())

    found = optimize.minimize(
        loss, np.full(8, 0.4), bounds=[(1e-9, 1 - 1e-9)] * 8, tol=1e-12,
        constraints={"type": "eq", "fun": lambda m: (c * m).sum() - budget},
    )  # fmt: skip
    m = soft(z, costs, budget, beta)
    assert m.numpy() == pytest.approx(found.x, abs=1e-4)
    assert loss(m.numpy()) <= loss(found.x) + 1e-9
    assert float((m * torch.tensor(c)).sum()) == pytest.approx(budget, rel=1e-6)


def test_sinkhorns_plan_has_the_same_marginals_and_mask() -> None:
    """Rows 1 (each weight), columns k and n - k (kept, cut), scaled in turns until they hold."""
    z, beta, k = numbers(12, seed=1).abs(), 4.0, 5
    kernel = torch.stack([torch.exp(beta * z), torch.ones(12)], 1)
    column = torch.ones(2, dtype=torch.float64)
    for _ in range(2000):
        row = 1 / (kernel @ column)
        column = torch.tensor([k, 12 - k], dtype=torch.float64) / (kernel.T @ row)
    plan = row[:, None] * kernel * column
    assert torch.allclose(plan.sum(1), torch.ones(12).double())
    assert torch.allclose(plan[:, 0], soft(z, [1] * 12, k, beta), atol=1e-6)


def test_infinitely_sharp_is_the_linear_program() -> None:
    """max Σ c z m with 0 <= m <= 1 and Σ c m <= k: top-k, where the costs let it be filled exactly."""
    z, costs = numbers(9, seed=2).abs(), [1, 2, 1, 2, 1, 2, 1, 2, 1]
    order = z.argsort(descending=True)
    budget = sum(costs[i] for i in order[:4].tolist())
    c = np.array(costs, dtype=float)
    program = optimize.linprog(-(c * z.numpy()), A_ub=c[None], b_ub=[budget], bounds=[(0, 1)] * 9)
    m = soft(z, costs, budget, 1e4)
    assert m.numpy() == pytest.approx(program.x, abs=1e-6)
    assert m.round().nonzero().view(-1).tolist() == sorted(order[:4].tolist())


@pytest.mark.parametrize("beta", [0.1, 3.0, 1e3])
@pytest.mark.parametrize("budget", [1, 37, 499])
def test_mass_is_conserved_over_several_tensors(beta: float, budget: int) -> None:
    parts = [Part(numbers(300).abs()), Part(numbers(200, seed=1).abs() * 5)]
    for start in (math.nan, 0.3, -1e9):
        mu = price(parts, budget, beta, start)
        assert sum(float(shares(p.values, beta, mu).sum()) for p in parts) == pytest.approx(budget, rel=1e-5)


def test_a_budget_for_all_masks_nothing_and_equals_share_alike() -> None:
    z = torch.ones(6, dtype=torch.float64)
    assert price([Part(z)], 6, 2.0) == -math.inf
    assert (shares(z, 2.0, -math.inf) == 1).all()
    assert soft(z, [1] * 6, 2, 50.0).tolist() == pytest.approx([1 / 3] * 6)


@pytest.mark.parametrize("cost", [1, 3])
def test_the_gradient_is_that_of_the_masked_weights(cost: int) -> None:
    """Of Σ g w m(w), against central differences; the budget holds while w moves."""
    w, g, beta, budget = numbers(7, seed=3), numbers(7, seed=4), 2.0, 2.5 * cost

    def part(at: Tensor) -> Part:
        return Part(at.abs() / cost, cost)

    def loss(at: Tensor) -> float:
        return float((g * at * shares(part(at).values, beta, price([part(at)], budget, beta, tolerance=1e-12))).sum())

    found = pull_back(part(w), w, g, beta, price([part(w)], budget, beta))
    for i in range(7):
        step = torch.zeros(7, dtype=torch.float64)
        step[i] = 1e-3
        assert (loss(w + step) - loss(w - step)) / 2e-3 == pytest.approx(float(found[i]), rel=1e-3, abs=1e-4)


def test_a_step_by_hand() -> None:
    """Two of four: what is shown is w m on the two largest, 0 elsewhere; all latents get the pulled-back gradient."""
    values = [0.5, -0.4, 0.3, 0.1]
    line = Line(values, rp.methods.Spartan(prune_end=1, beta_start=2.0, beta_end=2.0), 0.5, 10)
    line.step(0.0)
    w = torch.tensor(values)
    beta = 2 / float(w.square().mean().sqrt())
    z = w.abs()
    mu = optimize.brentq(lambda x: float(shares(z, beta, x).sum()) - 2, -5, 5)
    m = shares(z, beta, mu)
    assert line.mask == [0, 1]
    assert line.weight.tolist() == pytest.approx([0.5 * float(m[0]), -0.4 * float(m[1]), 0.0, 0.0], rel=1e-5)
    g = torch.tensor([1.0, 1.0, 1.0, -1.0])
    s, a = m * (1 - m), g * w
    expected = w - 0.1 * (g * m + w.sign() * beta * s * (a - (s * a).sum() / s.sum()))
    line.step(g.tolist())
    assert line.layer.state["latent"][0].tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_the_course_of_count_and_sharpness() -> None:
    """The count falls linearly in a fifth of the run, β rises linearly until the mask is fixed, and then it stands."""
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "spartan", sparsity=0.9, total_steps=50)
    total, final = sp.groups[0].total, sp.groups[0].final
    masks: dict[int, list[Tensor]] = {}

    def watch(t: int) -> None:
        assert sp.budget == round(total - (total - final) * min(t / 10, 1)) == sum(int(m.sum()) for m in sp.masks.values())
        masks[t] = [m.clone() for m in sp.masks.values()]
        if t < 40:
            latents = torch.cat([s.state["latent"].flatten() for s in sp.layers])
            beta = float(sp.layers[0].state["beta"]) * float(latents.square().mean().sqrt())
            assert beta == pytest.approx(1 + 9 * t / 40, rel=1e-4)
            kept = sum(float(shares(s.state["latent"].abs(), s.state["beta"], s.state["threshold"]).sum()) for s in sp.layers)
            assert kept == pytest.approx(sp.budget, rel=1e-4)
        else:
            assert "beta" not in sp.layers[0].state
            assert all(torch.equal(a, b) for a, b in zip(masks[t], masks[40]))

    train(model, optimizer, 1, 50, watch)
    sp.finalize()


def test_fixing_the_mask_does_not_move_the_network() -> None:
    """At a learning rate of 0 the step that fixes the mask leaves what is shown as the soft mask had it."""
    values = [0.5, -0.4, 0.3, 0.1]
    line = Line(values, rp.methods.Spartan(prune_end=1, fix_at=3, beta_end=1.0), 0.5, 10, lr=0.0)
    for _ in range(2):
        line.step(0.0)
    before = line.weight.clone()
    assert 0 < float(before[0]) < 0.5
    line.step(0.0)
    assert torch.equal(line.weight, before)
    assert line.layer.state["latent"][0, 2:].tolist() == [0.0, 0.0]


def test_layers_with_counts_of_their_own_have_thresholds_of_their_own() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "spartan", sparsity=0.9, total_steps=20, distribution="erk")
    train(model, optimizer, 1, 10)
    for layer in sp.layers:
        m = shares(layer.state["latent"].abs(), layer.state["beta"], layer.state["threshold"])
        assert float(m.sum()) == pytest.approx(layer.kept(), rel=1e-4)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"beta_start=5.0 and beta_end=1.0 are no rising sharpness"):
        rp.methods.Spartan(beta_start=5.0, beta_end=1.0)
    with pytest.raises(ValueError, match=r"beta_start='1' and"):
        rp.methods.Spartan(beta_start="1")  # type: ignore[arg-type]
    model = cnn()
    with pytest.raises(ValueError, match=r"fix_at=0.1 lies before prune_end=0.2"):
        rp.attach(model, sgd(model), "spartan", sparsity=0.9, total_steps=100, fix_at=0.1)
