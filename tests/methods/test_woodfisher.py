"""WoodFisher: the inverse against dense algebra, per-sample gradients against autograd, the surgeon's closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import rankprune as rp
from _nets import adamw, batch, cnn, sgd, train, vit
from rankprune.methods.shared import fisher as _fisher
from rankprune.methods.shared.fisher import fisher_gradients, inverse_diagonal, inverse_product

CE = nn.functional.cross_entropy


def rows(m: int, n: int, seed: int = 0) -> Tensor:
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.1


@pytest.mark.parametrize(("m", "n", "block"), [(5, 12, 100), (40, 12, 12), (7, 23, 5), (3, 23, 5), (4, 9, 1), (5, 8, 4)])
@pytest.mark.parametrize("entries", [1 << 23, 1])
def test_the_inverse_by_blocks(m: int, n: int, block: int, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to inv(λI + GᵀG/m) of each block of consecutive weights, whichever side of Woodbury is smaller."""
    monkeypatch.setattr(_fisher, "_ENTRIES", entries)
    g, v = rows(m, n), rows(1, n, seed=1)[0]
    dense = torch.zeros(n, n, dtype=torch.float64)
    for i in range(0, n, block):
        part = g[:, i : i + block]
        dense[i : i + block, i : i + block] = torch.linalg.inv(1e-3 * torch.eye(part.shape[1]).double() + part.T @ part / m)
    assert torch.allclose(inverse_diagonal(g, 1e-3, block), dense.diagonal(), rtol=1e-9)
    assert torch.allclose(inverse_product(g, v, 1e-3, block), dense @ v, rtol=1e-8)


def test_against_the_papers_recursion_in_any_order() -> None:
    """F⁻¹ ← F⁻¹ - (F⁻¹g)(F⁻¹g)ᵀ/(m + gᵀF⁻¹g), from I/λ."""
    g = rows(9, 6)
    for order in (range(9), reversed(range(9))):
        inverse = torch.eye(6, dtype=torch.float64) / 1e-2
        for i in order:
            u = inverse @ g[i]
            inverse = inverse - torch.outer(u, u) / (9 + g[i] @ u)
        assert torch.allclose(inverse.diagonal(), inverse_diagonal(g, 1e-2, 6), rtol=1e-5)


def test_blocks_of_one_are_the_damped_diagonal_and_no_gradient_is_magnitude() -> None:
    g = rows(8, 10)
    assert torch.allclose(inverse_diagonal(g, 1e-3, 1), 1 / (1e-3 + g.square().mean(0)), rtol=1e-12)
    assert torch.allclose(inverse_diagonal(torch.zeros(8, 10), 0.25, 4), torch.full((10,), 4.0, dtype=torch.float64))


def group_of(model: nn.Module, **hyper: object) -> object:
    data = [batch(i, next(model.parameters()).dtype) for i in range(3)]
    return rp.attach(model, sgd(model), "woodfisher", sparsity=0.5, total_steps=10, data=data, loss_fn=CE, **hyper).groups[0]


@pytest.mark.parametrize("make", [cnn, vit])
@pytest.mark.parametrize("minibatch", [1, 3, 50])
def test_gradients_are_those_of_single_minibatches(make: object, minibatch: int) -> None:
    model = make(dtype=torch.float64)  # type: ignore[operator]
    group = group_of(model)
    group.layers[0].mask[0] = False  # type: ignore[attr-defined]
    found = fisher_gradients(group, {s: s.mask for s in group.layers}, 7, minibatch)  # type: ignore[attr-defined,arg-type]
    size = min(minibatch, 8)
    model.eval()
    pairs = [(x[i : i + size], y[i : i + size]) for x, y in group.data for i in range(0, 8 - size + 1, size)][:7]  # type: ignore[attr-defined]
    assert all(len(rows) == len(pairs) for rows in found)
    for i, (x, y) in enumerate(pairs):
        grads = torch.autograd.grad(CE(model(x), y), [s.parameter for s in group.layers])  # type: ignore[attr-defined]
        for layer, g, got in zip(group.layers, grads, found):  # type: ignore[attr-defined]
            assert torch.allclose(got[i], (g * layer.mask).flatten(), atol=1e-10), layer.name


def test_a_model_that_vmap_refuses_is_worked_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = cnn()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x if x.sum().item() > 0 else -x)

    group = group_of(Branches())
    found = fisher_gradients(group, {s: s.mask for s in group.layers}, 4, 1)  # type: ignore[attr-defined,arg-type]
    assert [tuple(f.shape) for f in found] == [(4, 216), (4, 1152), (4, 640)]
    assert all(f.count_nonzero() for f in found)
    assert "one by one" in caplog.text


def quadratic(n: int, seed: int = 0) -> tuple[nn.Module, list, Tensor, float]:
    """A linear unit whose empirical Fisher is known: the loss of sample i is gᵢ·w, so its gradient is gᵢ whatever w."""
    torch.manual_seed(seed)
    model = nn.Linear(n, 1, bias=False).double()
    g = rows(3 * n, n, seed) * torch.logspace(-1, 1, n)
    return model, [(g, torch.zeros(3 * n, 1))], g, 1e-4


def test_one_weight_is_cut_as_the_surgeon_would() -> None:
    """The cheapest by w²/(2[F⁻¹]_qq) goes, its δw is exactly -w_q, and ½ δwᵀFδw is its cost."""
    model, data, g, damping = quadratic(10)
    fisher = damping * torch.eye(10).double() + g.T @ g / len(g)
    inverse = torch.linalg.inv(fisher)
    w = model.weight.detach().clone()[0]
    cost = w.square() / (2 * inverse.diagonal())
    q = int(cost.argmin())
    method = rp.methods.WoodFisher(gradients=100, damping=damping)
    rp.prune(model, method, sparsity=0.1, data=data, loss_fn=lambda outputs, _: outputs.mean())
    moved = model.weight.detach()[0] - w
    assert moved[q] == -w[q]
    assert torch.allclose(moved, -w[q] / inverse[q, q] * inverse[:, q], rtol=1e-6, atol=1e-12)
    assert torch.isclose(moved @ fisher @ moved / 2, cost[q], rtol=1e-6)


def test_many_weights_move_by_the_sum_of_single_updates_and_parts_change_nothing() -> None:
    model, data, g, damping = quadratic(12, seed=3)
    w = model.weight.detach().clone()[0]
    block = torch.zeros(12, 12, dtype=torch.float64)
    for i in (0, 5, 10):
        part = g[:, i : i + 5]
        block[i : i + 5, i : i + 5] = torch.linalg.inv(damping * torch.eye(part.shape[1]).double() + part.T @ part / len(g))
    cut = (w.square() / block.diagonal()).argsort()[:6]
    expected = w - sum(w[q] / block[q, q] * block[:, q] for q in cut)
    expected[cut] = 0
    method = rp.methods.WoodFisher(gradients=100, damping=damping, block=5)
    rp.prune(model, method, sparsity=0.5, data=data, loss_fn=lambda outputs, _: outputs.mean())
    assert torch.allclose(model.weight.detach()[0], expected, rtol=1e-6, atol=1e-12)


def test_less_memory_is_the_same_result() -> None:
    results = []
    for memory in (2 * 10**9, 8 * 10 * 1200, 1):
        model = cnn(dtype=torch.float64)
        group = group_of(model, gradients=10, memory=memory)
        results.append((len(group.method.parts(group.layers)), model, group))  # type: ignore[attr-defined]
        optimizer = group.optimizers[0]  # type: ignore[attr-defined]
        train(model, optimizer, 1, 6)
    assert [parts for parts, *_ in results] == [1, 3, 3]
    first, *others = ([p.detach() for p in model.parameters()] for _, model, _ in results)
    assert all(torch.allclose(a, b, atol=1e-10) for other in others for a, b in zip(first, other))


def test_the_schedule_is_cubic_and_lands_exactly() -> None:
    """s_f - s_f (1 - j/R)³ at the R steps up to prune_end; the original's last step is one short of the end."""
    model = cnn()
    optimizer = adamw(model)
    options = {"data": [batch(1)], "loss_fn": CE, "rounds": 4, "prune_end": 8, "gradients": 4}
    sp = rp.attach(model, optimizer, "woodfisher", sparsity=0.9, total_steps=12, **options)
    seen: dict[int, int] = {}
    train(model, optimizer, 1, 12, lambda step: seen.update({step: sum(int(m.sum()) for m in sp.masks.values())}))
    final = 201
    assert seen[1] == 2008
    assert [seen[s] for s in (2, 4, 6, 8)] == [final + round(1807 * left**3) for left in (0.75, 0.5, 0.25, 0.0)]
    assert seen[12] == final == sp.finalize().kept


def test_settings_are_checked() -> None:
    for wrong, message in (({"damping": 0.0}, "damping=0.0: it must be positive"), ({"rounds": 0}, "give an int of 1")):
        with pytest.raises(ValueError, match=message):
            rp.methods.WoodFisher(**wrong)
