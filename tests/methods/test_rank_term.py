"""The rank term by ratio, and the objective L_task + λ L_rank on the weights themselves: by hand and in training."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import rankprune as rp
from _nets import batch, cnn, sgd, train, train_scaled
from rankprune.core.method import PrunableLayer


def started(method: str = "rpg", **options: object) -> tuple[nn.Module, rp.Sparsifier]:
    model = cnn()
    sp = rp.attach(model, sgd(model), method, sparsity=0.8, total_steps=40, every=2, **options)
    x, y = batch(0)
    nn.functional.cross_entropy(model(x), y).backward()
    return model, sp


def half(layer: PrunableLayer) -> Tensor:
    return torch.rand(layer.shape, generator=torch.Generator().manual_seed(1)) < 0.5


@pytest.mark.parametrize("signal", ["rank", "noise"])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0])
def test_a_ratio_is_that_of_the_root_mean_squares_where_the_term_acts(ratio: float, signal: Literal["rank", "noise"]) -> None:
    _, sp = started()
    layers = [layer for layer in sp.layers if layer.kind == "conv"]
    method = rp.methods.RPG(lam=f"ratio:{ratio}", delta=0.2, rank_signal=signal)
    terms = dict(method.rank_terms(sp.groups[0], sp.layers, half, 1))
    assert list(terms) == layers
    for layer, term in terms.items():
        where = half(layer)
        task = layer.grad[where].square().mean().sqrt()
        tolerance = 1e-5 if signal == "rank" else 0.35  # noise has the size on average, over few weights
        assert float(term[where].square().mean().sqrt()) == pytest.approx(ratio * float(task), rel=tolerance)


def test_a_ratio_points_where_the_rank_gradient_points() -> None:
    _, sp = started()
    plain, scaled = (rp.methods.RPG(lam=lam, delta=0.2).rank_terms(sp.groups[0], sp.layers, half, 1) for lam in (1.0, "ratio:2"))
    for (_, a), (_, b) in zip(plain, scaled, strict=True):
        assert float(torch.cosine_similarity(a.flatten(), b.flatten(), dim=0)) == pytest.approx(1.0, abs=1e-6)


def test_growth_by_ratio_is_the_same_at_every_scale_of_the_loss() -> None:
    """A fixed λ is not: that is what the ratio is for."""

    def masks(lam: float | str, scale: float) -> list[Tensor]:
        model = cnn()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05 / scale)  # the same steps at every scale
        sp = rp.attach(model, optimizer, "rpg", sparsity=0.9, total_steps=40, every=4, lam=lam, delta=0.2)
        for step in range(1, 41):
            x, y = batch(step)
            (scale * nn.functional.cross_entropy(model(x), y)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [mask.clone() for mask in sp.masks.values()]

    def same(a: list[Tensor], b: list[Tensor]) -> bool:
        return all(torch.equal(x, y) for x, y in zip(a, b))

    assert same(masks("ratio:1", 1.0), masks("ratio:1", 2.0**6))
    assert not same(masks(4.0, 1.0), masks(4.0, 2.0**6))


@pytest.mark.parametrize("lam", ["ratio:-1", "ratio:", "ratio:x", "0.3", -1.0, True, float("nan"), "ratio:inf"])
def test_a_lambda_that_is_none_is_a_sentence(lam: object) -> None:
    with pytest.raises(ValueError, match=r"lam=.* is neither a number from 0, nor a ratio such as 'ratio:0\.3', nor a schedule"):
        rp.methods.RPG(lam=lam)  # type: ignore[arg-type]


def test_the_weights_step_by_task_and_rank_gradient_together() -> None:
    """One plain SGD step by hand: w - lr (g_task + term), the term masked, on every second step."""
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sp = rp.attach(model, optimizer, "rpg", sparsity=0.5, total_steps=400, every=100, rank_on="weights", rank_every=2, lam="ratio:1", delta=0.2)
    for step in (1, 2):
        x, y = batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        conv = [layer for layer in sp.layers if layer.kind == "conv"]
        terms = rp.methods.RPG(lam="ratio:1", delta=0.2).rank_terms(sp.groups[0], conv, lambda s: s.mask, step)
        wanted = {s.name: s.weight - 0.1 * (s.grad + t * (step == 2)) for s, t in terms}
        optimizer.step()
        for layer in conv:
            assert torch.allclose(layer.weight, wanted[layer.name], atol=1e-7), (step, layer.name)


def test_growth_is_the_default_and_leaves_the_weights_to_the_task() -> None:
    plain, sp = started(lam=50.0)
    assert sp.groups[0].method.before_every() == 0
    other, _ = started(lam=0.0)
    for model in (plain, other):
        train(model, sgd(model), 1, 1)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), other.parameters()))


def test_training_by_the_rank_loss_raises_the_rank() -> None:
    """Theorem 2 of the paper: a step along the rank gradient alone raises the energy beyond rank k."""

    def energy(rank_on: str) -> float:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(8, 16, 3, bias=False))
        with torch.no_grad():  # nearly of rank 3
            low = torch.randn(16, 3) @ torch.randn(3, 72)
            model[0].weight.copy_((low + 0.3 * torch.randn(16, 72)).view(16, 8, 3, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        rp.attach(model, optimizer, "rpg", sparsity=0.01, total_steps=1000, every=500, rank_on=rank_on, rank_every=1, lam=20.0, delta=0.1)
        for _ in range(30):
            model[0].weight.grad = torch.zeros_like(model[0].weight)
            optimizer.step()
        values = torch.linalg.svdvals(model[0].weight.detach().flatten(1)).square()
        return float(values[3:].sum() / values.sum())

    assert energy("weights") > 1.5 * energy("growth")


def test_a_loss_scale_leaves_the_step_the_same() -> None:
    """Fused SGD under a GradScaler: a fixed λ is scaled with the gradient, so that what is unscaled is its own size."""

    def weights(scaled: bool) -> list[Tensor]:
        model = cnn()
        optimizer = sgd(model, fused=True)
        rp.attach(model, optimizer, "rpg", sparsity=0.9, total_steps=30, every=10, lam=2.0, rank_on="both", rank_every=2)
        train_scaled(model, optimizer, 30, scaled)
        return [p.detach() for p in model.parameters()]

    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(weights(False), weights(True)))
