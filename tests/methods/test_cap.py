"""CAP: greedy removal and its correction against brute force on small quadratics, and the whole method on a known one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import rankprune as rp
from _nets import batch, cnn, sgd, train
from rankprune.methods.shared import elimination as _elimination
from rankprune.methods.shared import fisher as _fisher
from rankprune.methods.shared.elimination import removal_change, removal_costs
from rankprune.methods.shared.fisher import fisher_blocks, fisher_gradients

CE = nn.functional.cross_entropy


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def best_without(fisher: Tensor, weight: Tensor, gone: list[int]) -> tuple[float, Tensor]:
    """The least ½ (v - w)ᵀF(v - w) over v with zeros at `gone`, and that v: one linear solve from scratch."""
    rest = [i for i in range(len(weight)) if i not in gone]
    found = torch.zeros_like(weight)
    if rest:
        target = (fisher @ weight)[rest]
        found[rest] = torch.linalg.solve(fisher[rest][:, rest], target)
    moved = found - weight
    return float(moved @ fisher @ moved) / 2, found


def greedy(fisher: Tensor, weight: Tensor) -> list[tuple[int, float]]:
    """Remove one after the other what raises the optimum least, each optimum solved for from scratch."""
    gone: list[int] = []
    found = []
    for _ in weight:
        losses = {q: best_without(fisher, weight, [*gone, q])[0] for q in range(len(weight)) if q not in gone}
        gone.append(min(losses, key=losses.__getitem__))
        found.append((gone[-1], losses[gone[-1]]))
    return found


@pytest.mark.parametrize("entries", [1 << 23, 1])
def test_costs_are_those_of_greedy_removal_by_brute_force(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_elimination, "_ENTRIES", entries)
    g, w, damping = numbers(3, 12, 7), numbers(21, seed=1), 1e-3
    fisher = g.mT @ g / 12
    costs = removal_costs(fisher, w, torch.ones(21, dtype=torch.bool), damping)
    for block in range(3):
        damped = fisher[block] + damping * torch.eye(7)
        own = slice(7 * block, 7 * block + 7)
        order = greedy(damped, w[own])
        assert costs[own].argsort().tolist() == [q for q, _ in order]
        assert costs[own].sort().values.tolist() == pytest.approx([loss for _, loss in order], rel=1e-8)


def test_two_equal_weights_by_hand() -> None:
    """F = [[1, a], [a, 1]] and w = (1, 1). The first goes for (1 - a²)/2 and leaves 1 + a to the other, which adds
    (1 + a)²/2: together (1 + a), the loss of both. WoodFisher would price the second like the first."""
    a = 0.9
    fisher = torch.tensor([[[0.75, a], [a, 0.75]]], dtype=torch.float64)  # and the damping makes 1 of the diagonal
    ones = torch.ones(2, dtype=torch.float64)
    costs = removal_costs(fisher, ones, torch.ones(2, dtype=torch.bool), 0.25)
    assert costs.sort().values.tolist() == pytest.approx([(1 - a * a) / 2, 1 + a])
    change = removal_change(fisher, ones, torch.tensor([True, False]), 0.25)
    assert (ones - change).tolist() == pytest.approx([0.0, 1 + a])


def test_of_two_that_stand_in_for_each_other_one_stays() -> None:
    """Weights 0 and 1 see the same input, weight 2 another. Alone, 0 and 1 are the cheapest two; removed together they
    are the dearest pair. CAP cuts one of them and weight 2."""
    fisher = torch.tensor([[[4.0, 4.0, 0.0], [4.0, 4.0, 0.0], [0.0, 0.0, 1.0]]], dtype=torch.float64)
    w = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    inverse = torch.linalg.inv(fisher[0] + 1e-3 * torch.eye(3))
    assert (w.square() / inverse.diagonal()).argsort()[:2].sort().values.tolist() == [0, 1]
    costs = removal_costs(fisher, w, torch.ones(3, dtype=torch.bool), 1e-3)
    assert 2 in costs.argsort()[:2].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_the_correction_is_the_optimum_of_the_quadratic(seed: int) -> None:
    """For any set, not only one that greedy removal would choose; the last block is shorter than the others."""
    g, w, damping = numbers(10, 17, seed=seed), numbers(17, seed=seed + 9), 1e-2
    blocks = torch.stack([part.T @ part / 10 for part in nn.functional.pad(g, (0, 1)).unflatten(1, (3, 6)).unbind(1)])
    cut = numbers(17, seed=seed + 20) > 0.3
    found = w - removal_change(blocks, w, cut, damping)
    for block, start in enumerate(range(0, 17, 6)):
        size = min(6, 17 - start)
        damped = blocks[block, :size, :size] + damping * torch.eye(size)
        gone = cut[start : start + size].nonzero().view(-1).tolist()
        assert torch.allclose(found[start : start + size], best_without(damped, w[start : start + size], gone)[1], rtol=1e-9)
    assert (found[cut] == 0).all()


def test_the_inactive_cost_nothing_and_take_no_part() -> None:
    """The blocks have different numbers of them, one of them none that is active."""
    g, w = numbers(4, 20, 9), numbers(36, seed=1)
    active = numbers(36, seed=2) > -0.5
    active[9:18] = False
    active[18:27] = True
    w = torch.where(active, w, 0.0)
    g = g * active.view(4, 1, 9)
    fisher = g.mT @ g / 20
    costs = removal_costs(fisher, w, active, 1e-3)
    assert (costs[~active] == 0).all()
    for block in range(4):
        own = active.view(4, 9)[block].nonzero().view(-1)
        damped = fisher[block][own][:, own] + 1e-3 * torch.eye(len(own))
        expected = [loss for _, loss in greedy(damped, w.view(4, 9)[block][own])]
        assert costs.view(4, 9)[block][own].sort().values.tolist() == pytest.approx(expected, rel=1e-8)


def group_of(model: nn.Module, **hyper: object) -> object:
    data = [batch(i, next(model.parameters()).dtype) for i in range(3)]
    return rp.attach(model, sgd(model), "cap", sparsity=0.5, total_steps=10, data=data, loss_fn=CE, **hyper).groups[0]


@pytest.mark.parametrize("entries", [1 << 23, 1])
def test_the_blocks_are_the_mean_of_the_gradients_outer_products(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of(cnn(dtype=torch.float64))
    masks = {s: s.mask for s in group.layers}  # type: ignore[attr-defined]
    rows = fisher_gradients(group, masks, 20, 1)  # type: ignore[arg-type]
    monkeypatch.setattr(_fisher, "_ENTRIES", entries)
    for g, found in zip(rows, fisher_blocks(group, masks, 20, 1, 100)):  # type: ignore[arg-type]
        for i, block in enumerate(found):
            part = g[:, 100 * i : 100 * i + 100]
            size = part.shape[1]
            assert torch.allclose(block[:size, :size], part.T @ part / 20, atol=1e-14)
            assert block[size:].count_nonzero() == block[:, size:].count_nonzero() == 0


def test_the_method_does_what_brute_force_does() -> None:
    """A linear unit whose empirical Fisher is known: the loss of sample i is gᵢ·w, so its gradient is gᵢ whatever w."""
    torch.manual_seed(3)
    model = nn.Linear(8, 1, bias=False).double()
    mix = numbers(8, 8, seed=5)
    g = numbers(24, 8, seed=4) @ mix  # strongly correlated
    w = model.weight.detach().clone()[0]
    fisher = g.T @ g / 24 + 1e-4 * torch.eye(8)
    order = [q for q, _ in greedy(fisher, w)]
    method = rp.methods.CAP(gradients=100, damping=1e-4)
    rp.prune(model, method, sparsity=0.5, data=[(g, torch.zeros(24, 1))], loss_fn=lambda outputs, _: outputs.mean())
    loss, expected = best_without(fisher, w, order[:4])
    assert torch.allclose(model.weight.detach()[0], expected, rtol=1e-5, atol=1e-9)
    wood = nn.Linear(8, 1, bias=False).double()
    with torch.no_grad():
        wood.weight.copy_(w)
    rival = rp.methods.WoodFisher(gradients=100, damping=1e-4)
    rp.prune(wood, rival, sparsity=0.5, data=[(g, torch.zeros(24, 1))], loss_fn=lambda outputs, _: outputs.mean())
    moved = wood.weight.detach()[0] - w
    assert loss < float(moved @ fisher @ moved) / 2


def test_less_memory_is_the_same_result() -> None:
    results = []
    for memory in (2 * 10**9, 1):
        model = cnn(dtype=torch.float64)
        group = group_of(model, gradients=10, memory=memory, block=30)
        results.append((len(group.method.parts(group.layers)), model))  # type: ignore[attr-defined]
        train(model, group.optimizers[0], 1, 6)  # type: ignore[attr-defined]
    assert [parts for parts, _ in results] == [1, 3]
    first, second = ([p.detach() for p in model.parameters()] for _, model in results)
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(first, second))


def test_settings_are_checked() -> None:
    huge = torch.full((1, 40, 40), 1e12, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"damping=1e-08 is lost .* raise it"):
        removal_costs(huge, torch.ones(40), torch.ones(40, dtype=torch.bool), 1e-8)
    with pytest.raises(ValueError, match="cap has block=0: it must be positive"):
        rp.methods.CAP(block=0)
