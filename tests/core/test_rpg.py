"""RPG: the authors' recorded run, the paper's facts, and the reference's defects that ours does not have."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import rankprune as rp
from _nets import cnn, sgd, train, train_scaled


def golden_net() -> nn.Module:
    def block(i: int, o: int, k: int, **options: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, k, bias=False, **options), nn.BatchNorm2d(o), nn.ReLU()]

    layers = [
        *block(3, 8, 3, padding=1),
        *block(8, 16, 3, stride=2, padding=1),
        *block(16, 16, 3, padding=1),
        *block(16, 32, 1),
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)).double()


@pytest.fixture(scope="module")
def golden(shared: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    with safe_open(str(shared / "goldens" / "rpg-reference-case-a.safetensors"), "pt") as file:
        return file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def test_replay_of_the_authors_run(golden: tuple[dict[str, str], dict[str, Tensor]]) -> None:
    """At each update, from the reference's weights and gradients, our mask is the reference's but for its rounding."""
    settings, tensors = golden
    net = golden_net()
    net.load_state_dict({k.removeprefix("init."): v for k, v in tensors.items() if k.startswith("init.")})
    optimizer = torch.optim.SGD(net.parameters(), lr=float(settings["lr"]), momentum=0.9)
    sp = rp.attach(
        net, optimizer, "rpg", sparsity=float(settings["sparsity"]), total_steps=int(settings["total"]),
        every=int(settings["delta_t"]), grow=float(settings["alpha"]), lam=float(settings["lamb"]),
        delta=float(settings["delta"]), prune_end=int(settings["T_prune"]), update_end=int(settings["T_end"]),
    )  # fmt: skip
    parameters = dict(net.named_parameters())
    updates = []
    for step in range(1, 91):
        recorded = f"rank_loss.{step}" in tensors and f"mask.{step}.0.weight" in tensors
        nn.functional.cross_entropy(net(tensors["x"][step - 1]), tensors["y"][step - 1].long()).backward()
        if recorded:
            with torch.no_grad():
                for name in sp.masks:
                    parameters[name].copy_(tensors[f"pre.{step}.{name}"])
                    parameters[name].grad = tensors[f"task_grad.{step}.{name}"].clone()
        optimizer.step()
        optimizer.zero_grad()
        if recorded:
            reference = {name: tensors[f"mask.{step}.{name}"].bool() for name in sp.masks}
            differ = sum(int((sp.masks[n] != reference[n]).sum()) for n in sp.masks)
            assert differ <= 2 * (1 + len(sp.masks)), (step, differ)
            sp.set_masks(reference)
            updates.append(step)
    assert updates == list(range(5, 90, 5))


def test_rank_gradient_of_the_authors_run(golden: tuple[dict[str, str], dict[str, Tensor]]) -> None:
    settings, tensors = golden
    convs = [n for n, p in golden_net().named_parameters() if p.ndim == 4]
    lam, delta = float(settings["lamb"]), float(settings["delta"])
    for step in range(5, 90, 5):
        weights = [tensors[f"pre.{step}.{n}"] for n in convs]
        loss = sum(float(rp.rank.rank_loss(w, delta)) for w in weights) / len(convs)
        assert loss == pytest.approx(float(tensors[f"rank_loss.{step}"]), abs=1e-9)
        for name, grad in zip(convs, rp.rank.rank_grads(weights, delta)):
            expected = tensors[f"grow_grad.{step}.{name}"] - tensors[f"task_grad.{step}.{name}"]
            assert torch.allclose(lam * grad / len(convs), expected, atol=1e-9, rtol=0), (step, name)


def run(steps: int = 60, dtype: torch.dtype = torch.float32, method: str = "rpg", **options: object) -> rp.Sparsifier:
    model = cnn(dtype=dtype)
    optimizer = sgd(model)
    settings = {"sparsity": 0.95, "total_steps": steps, "every": 5, **options}
    sp = rp.attach(model, optimizer, method, **settings)  # type: ignore[arg-type]
    train(model, optimizer, 1, steps)
    return sp


def same(a: rp.Sparsifier, b: rp.Sparsifier) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.masks.values(), b.masks.values()))


def test_rank_changes_what_grows() -> None:
    """On a real little problem RPG is neither GMP nor its own λ = 0."""
    full, plain, gmp = run(lam=4.0), run(lam=0.0), run(method="gmp", density_schedule="exponential")
    assert not same(full, plain)
    assert not same(full, gmp)
    assert not same(plain, gmp)
    assert not same(full, run(lam=4.0, rank_reduction="sum"))
    assert not same(full, run(lam=4.0, rank_layers="all"))


def test_without_rank_and_growth_it_is_gradual_magnitude_pruning() -> None:
    assert same(run(lam=0.0, grow=0), run(method="gmp", density_schedule="exponential"))
    assert same(run(lam=0.0, grow=0, density_schedule="cubic"), run(method="gmp"))


def test_density_is_geometric_and_ends_on_the_target() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "rpg", sparsity=0.96, total_steps=100, every=5, prune_end=0.8)
    total = sum(m.numel() for m in sp.masks.values())
    final = round(total * (1 - 0.96)) / total
    budgets = {}

    def watch(step: int) -> None:
        if step % 5 == 0:
            budgets[step // 5 - 1] = sp.budget
        assert sum(int(m.sum()) for m in sp.masks.values()) == sp.budget

    train(model, optimizer, 1, 100, watch)
    assert budgets[0] == total  # the first update changes nothing
    for number in range(17):
        assert budgets[number] == round(total * final ** (number / 16))
    assert budgets[16] == budgets[19] == round(total * (1 - 0.96))
    method = sp.groups[0].method
    assert method.updates(100)[-1] == 85  # by default the last update is the one that reaches the target


@pytest.mark.parametrize("prune_end", [0.8, 0.81, 37, 1.0, 4, "50%"])
@pytest.mark.parametrize("update_end", [None, 0.8, 41, 1.0])
def test_the_last_update_lands_on_the_target(prune_end: object, update_end: object) -> None:
    """The reference's CIFAR settings (both ends at 0.8) stop one update short; ours never does."""
    run(50, prune_end=prune_end, update_end=update_end).finalize()


def test_updates_replace_the_step() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "rpg", sparsity=0.9, total_steps=40, every=4, lam=1.0)
    train(model, optimizer, 1, 11)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    old = {n: m.clone() for n, m in sp.masks.items()}
    moments = {n: optimizer.state[p]["momentum_buffer"].clone() for n, p in model.named_parameters()}
    train(model, optimizer, 12, 12)
    for name, parameter in model.named_parameters():
        now = parameter.detach()
        if name not in sp.masks:
            assert torch.equal(now, before[name])  # no parameter moves, BatchNorm and biases neither
            continue
        mask = sp.masks[name]
        stayed = mask & old[name] & (now != 0)
        assert torch.equal(now[stayed], before[name][stayed])
        assert now[mask & ~old[name]].count_nonzero() == 0  # grown from outside starts at 0
        assert torch.equal(optimizer.state[parameter]["momentum_buffer"], moments[name] * mask)


def test_grown_is_the_top_of_the_combined_gradient() -> None:
    """Brute force, one layer: counts by magnitude, drop by magnitude, grow by |g + λ·rank gradient / layers|."""
    torch.manual_seed(0)
    model = nn.Conv2d(6, 10, 3, bias=False).double()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "rpg", sparsity=0.8, total_steps=30, every=3, lam=5.0, delta=0.2)
    weight = model.weight
    for step in range(1, 22):
        x = torch.randn(4, 6, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        (model(x) ** 2).mean().backward()
        before, old = weight.detach().clone(), sp.masks["weight"].clone()
        grad = weight.grad.clone()
        optimizer.step()
        if step % 3 == 0 and sp.budget < weight.numel():
            score = before.abs().reshape(-1).masked_fill(~old.reshape(-1), -1)
            share = 0.15 * (1 + math.cos(math.pi * step / sp.groups[0].plan.end))
            kept = torch.zeros(weight.numel(), dtype=torch.bool)
            kept[score.argsort(descending=True, stable=True)[: sp.budget - int(sp.budget * share)]] = True
            combined = (grad + 5.0 * rp.rank.rank_grad(before, 0.2)).abs().reshape(-1).masked_fill(kept, -1)
            kept[combined.argsort(descending=True, stable=True)[: int(sp.budget * share)]] = True
            assert torch.equal(sp.masks["weight"].reshape(-1), kept)
        optimizer.zero_grad()


def test_zero_weights_do_not_make_it_dense() -> None:
    """Many exact zeros: a threshold by >= would keep them all (the reference's collapse); counts stay exact here."""
    model = cnn()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter[torch.rand_like(parameter) < 0.97] = 0.0
    optimizer = sgd(model, lr=0.0)
    sp = rp.attach(model, optimizer, "rpg", sparsity=0.9, total_steps=30, every=3)
    train(model, optimizer, 1, 30, lambda _: None)
    assert sum(int(m.sum()) for m in sp.masks.values()) == sp.budget
    sp.finalize()


def test_defaults_are_the_authors() -> None:
    for sparsity, expected in {0.5: (0.5, 0.2), 0.8: (0.5, 0.2), 0.85: (0.5, 0.2), 0.9: (0.5, 0.1), 0.93: (0.5, 0.1),
                               0.95: (3.0, 0.2), 0.98: (4.0, 0.2), 0.999: (4.0, 0.2)}.items():  # fmt: skip
        assert rp.methods.RPG(sparsity).coefficients() == expected
    method = rp.methods.RPG()
    assert (method.plan.period(method.run(125_100)), method.grow, method.plan.prune_end, method.rank_reduction, method.rank_layers) == (
        100,
        0.3,
        0.9,
        "mean",
        "conv",
    )
    assert method.plan.density_schedule == "exponential"


def test_authors_imagenet_timetable() -> None:
    """125,100 steps, ΔT 100, prune_end 0.9: 1125 ramp updates, the target first at step 112,600."""
    method = rp.methods.RPG(0.9)
    run = method.run(125_100)
    assert method.plan.reached(replace(run, steps=method.plan.steps(run))) == 112_600
    assert method.updates(125_100)[-1] == 112_600
    late = rp.methods.RPG(0.9, update_end=0.901)
    assert len(late.updates(125_100)) == 1127
    assert late.updates(125_100)[-1] == 112_700


def test_hyper_parameters_may_be_callables() -> None:
    seen = []

    def lam(step: int) -> float:
        seen.append(step)
        return 1.0

    run(20, lam=lam, grow=lambda step: 0.2)
    assert sorted(set(seen)) == [5, 10, 15]


def test_a_scaled_gradient_is_unscaled_before_it_meets_the_rank_gradient() -> None:
    """Fused SGD under a GradScaler: p.grad is still scaled in the hook, and the masks are those without a scaler."""

    def masks(scaled: bool, fused: bool) -> list[Tensor]:
        model = cnn()
        optimizer = sgd(model, fused=fused)
        sp = rp.attach(model, optimizer, "rpg", sparsity=0.9, total_steps=30, every=3, lam=2.0)
        train_scaled(model, optimizer, 30, scaled)
        assert sp.step == 30
        return list(sp.masks.values())

    plain = masks(False, True)
    assert all(torch.equal(a, b) for a, b in zip(plain, masks(True, True)))
    assert all(torch.equal(a, b) for a, b in zip(masks(False, False), masks(True, False)))


def test_what_the_budget_cuts_and_growth_returns_starts_from_0_and_what_growth_alone_drops_does_not() -> None:
    """The budget leaves 0..3, of which 2 stay; the gradient asks for 2, just dropped, and for 5, just cut."""
    model = nn.Linear(8, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, momentum=0.9)
    method = rp.methods.RPG(every=2, prune_end=2, update_end=100, grow=0.6, lam=0.0, rank_layers="all")
    sp = rp.attach(model, optimizer, method, sparsity=0.5, total_steps=100)
    values = torch.tensor([[0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]])
    with torch.no_grad():
        model.weight.copy_(values)
    for step in range(1, 5):
        wanted = [0.0, 0.0, 9.0, 0.0, 0.0, 9.0, 0.0, 0.0]
        model.weight.grad = torch.tensor([wanted]) if step == 4 else torch.ones(1, 8)
        optimizer.step()
    assert sp.masks["weight"][0].nonzero().flatten().tolist() == [0, 1, 2, 5]
    assert model.weight[0].tolist() == pytest.approx([0.8, 0.7, 0.6, 0.0, 0.0, 0.0, 0.0, 0.0], abs=1e-6)
    momentum = optimizer.state[model.weight]["momentum_buffer"][0]
    assert momentum.tolist() == pytest.approx([1.9, 1.9, 1.9, 0.0, 0.0, 1.9, 0.0, 0.0])  # the authors keep it as well


def test_an_empty_layer_does_not_count_in_the_mean() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Conv2d(5, 4, 3)).double()
    sp = rp.attach(model, sgd(model), "rpg", sparsity=0.5, total_steps=500)
    with torch.no_grad():
        model[1].weight.zero_()
    terms = rp.methods.RPG(lam=3.0, delta=0.2).rank_terms(sp.groups[0], sp.layers, lambda layer: ~layer.mask, 1)
    first, second = (term for _, term in terms)
    assert torch.allclose(first, 3.0 * rp.rank.rank_grad(model[0].weight.detach(), 0.2))
    assert not second.any()


def test_after_the_target_without_rank_it_is_rigl() -> None:
    """λ = 0 and a budget that stands: from the same masks, weights and momenta the updates are RigL's."""
    model, twin = cnn(), cnn()
    first, second = sgd(model), sgd(twin)
    options = {"sparsity": 0.9, "total_steps": 60, "every": 5, "update_end": 60}
    sp = rp.attach(model, first, "rpg", lam=0.0, prune_end=20, **options)  # type: ignore[arg-type]
    train(model, first, 1, 26)  # the target is reached at step 25
    other = rp.attach(twin, second, "rigl", **options)  # type: ignore[arg-type]
    train(twin, second, 1, 26)
    other.set_masks(sp.masks)
    twin.load_state_dict(model.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    before = [m.clone() for m in sp.masks.values()]
    for step in range(27, 51):
        train(model, first, step, step)
        train(twin, second, step, step)
        assert same(sp, other), step
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters()))
    assert not all(torch.equal(a, b) for a, b in zip(before, sp.masks.values()))
