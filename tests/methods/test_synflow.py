"""SynFlow: closed forms on linear layers, an independent run of all rounds, conservation, and no trace left behind."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import sgd
from rankprune.core.budget import kept
from rankprune.core.method import Group
from rankprune.methods.synflow import synaptic_flow


def mlp(*widths: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Linear layers without bias, with ReLU between them."""
    torch.manual_seed(seed)
    parts: list[nn.Module] = []
    for n_in, n_out in pairwise(widths):
        parts += [nn.Linear(n_in, n_out, bias=False), nn.ReLU()]
    return nn.Sequential(*parts[:-1]).to(dtype)


def ones(*shape: int) -> list[tuple[torch.Tensor, None]]:
    return [(torch.ones(1, *shape), None)]


def dense_group(model: nn.Module) -> Group:
    """The group of a sparsifier that has cut nothing yet."""
    return rp.attach(model, sgd(model), "gmp", sparsity=0.5, total_steps=1000).groups[0]


def flow_by_matrices(weights: list[np.ndarray]) -> list[np.ndarray]:
    """|W_l| times (1ᵀ ∏ above) (∏ below 1), from products of matrices alone."""
    sizes = [np.abs(w) for w in weights]
    below = [np.ones(sizes[0].shape[1])]
    for w in sizes:
        below.append(w @ below[-1])
    above = [np.ones(sizes[-1].shape[0])]
    for w in reversed(sizes):
        above.insert(0, above[0] @ w)
    return [w * np.outer(above[i + 1], below[i]) for i, w in enumerate(sizes)]


def test_two_layers_by_hand() -> None:
    model = mlp(2, 2, 1)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, -2.0], [0.0, 3.0]]))
        model[2].weight.copy_(torch.tensor([[-4.0, 0.5]]))
    first, second = synaptic_flow(dense_group(model), torch.randn(7, 2))
    # R = 4 (1 + 2) + 0.5 · 3 = 13.5; the scores are shares of it.
    assert torch.allclose(first * 13.5, torch.tensor([[4.0, 8.0], [0.0, 1.5]]))
    assert torch.allclose(second * 13.5, torch.tensor([[12.0, 1.5]]))


@pytest.mark.parametrize("rounds", [1, 7, 100])
def test_all_rounds_agree_with_products_of_matrices(rounds: int) -> None:
    model = mlp(20, 15, 12, 5, dtype=torch.float64)
    weights = [layer.weight.detach().numpy().copy() for layer in model[::2]]
    total, final = sum(w.size for w in weights), kept(540, 0.8)
    masks = [np.ones_like(w, dtype=bool) for w in weights]
    for number in range(1, rounds + 1):
        scores = flow_by_matrices([w * m for w, m in zip(weights, masks)])
        left = final if number == rounds else round(total * (final / total) ** (number / rounds))
        threshold = np.sort(np.concatenate([s.ravel() for s in scores]))[-left]
        masks = [s >= threshold for s in scores]
    rp.prune(model, rp.methods.SynFlow(rounds=rounds), sparsity=0.8, data=[(torch.randn(3, 20).double(), None)])
    assert total == 540
    for layer, mask in zip(model[::2], masks):
        assert np.array_equal((layer.weight != 0).numpy(), mask)


def test_a_hundred_rounds_is_the_default_and_not_one() -> None:
    counts = []
    for method in ("synflow", rp.methods.SynFlow(rounds=100), rp.methods.SynFlow(rounds=1)):
        model = mlp(30, 30, 30, 30, 2)
        report = rp.prune(model, method, sparsity=0.99, data=ones(30))
        counts.append([layer.kept for layer in report.layers])
    assert counts[0] == counts[1] != counts[2]


def test_the_flow_of_every_layer_is_the_same() -> None:
    """Conservation (theorem 1 and 2): scores of a layer that all paths cross sum to R, through any normalisation."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8, affine=False), nn.ReLU(),
        nn.Conv2d(8, 6, 3, stride=2, bias=False), nn.GroupNorm(2, 6, affine=False), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(24, 7, bias=False), nn.LayerNorm(7, elementwise_affine=False), nn.Linear(7, 4, bias=False),
    )  # fmt: skip
    model[1].running_mean.normal_(std=5.0)  # of a trained network: it must not turn the flow off
    sums = [float(flow.double().sum()) for flow in synaptic_flow(dense_group(model), torch.randn(2, 3, 9, 9))]
    assert sums == pytest.approx([1.0] * 4, rel=1e-5)


def test_at_the_highest_compression_a_path_is_left() -> None:
    """Five layers and five weights (axiom: maximal critical compression); magnitude cuts every path here."""
    for seed in range(3):
        model = mlp(12, 12, 12, 12, 12, 12, seed=seed)
        with torch.no_grad():
            model[4].weight.mul_(0.01)  # the layer that magnitude empties
        report = rp.prune(model, "synflow", sparsity=1 - 5 / 720, data=ones(12))
        assert [layer.kept for layer in report.layers] == [1] * 5
        product = torch.ones(12)
        for layer in model[::2]:
            product = layer.weight.detach().abs() @ product
        assert float(product.sum()) > 0.0


@pytest.mark.parametrize("scale", [1e3, 1e-7])
def test_deep_networks_do_not_overflow(scale: float) -> None:
    masks = []
    for dtype in (torch.float32, torch.float64):
        model = mlp(*[8] * 21).to(dtype)
        with torch.no_grad():
            for layer in model[::2]:
                layer.weight.mul_(scale)
        rp.prune(model, rp.methods.SynFlow(rounds=10), sparsity=0.7, data=[(torch.ones(1, 8, dtype=dtype), None)])
        masks.append([layer.weight != 0 for layer in model[::2]])
    assert all(torch.equal(a, b) for a, b in zip(*masks))


def test_no_trace_is_left() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 5)).train()
    model[1].running_mean.normal_()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    drawn = torch.get_rng_state()
    report = rp.prune(model, "synflow", sparsity=0.5, data=ones(3, 4, 4))
    assert report.kept == kept(4 * 27 + 80, 0.5)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert model[1].training
    assert model[1]._forward_hooks == {}
    for name, value in model.state_dict().items():
        held = value != 0 if name in ("0.weight", "4.weight") else torch.ones_like(value, dtype=torch.bool)
        assert torch.equal(value[held], before[name][held]), name
    assert all(p.grad is None for p in model.parameters())


def test_only_the_shape_of_the_data_counts() -> None:
    masks = []
    for seed in (1, 2):
        model = mlp(10, 10, 3)
        data = torch.randn(6, 10, generator=torch.Generator().manual_seed(seed))
        rp.prune(model, "synflow", sparsity=0.8, data=[(data, torch.zeros(6))])
        masks.append(model[0].weight != 0)
    assert torch.equal(*masks)


def test_no_number_of_rounds() -> None:
    with pytest.raises(ValueError, match="rounds=0 is not a number of rounds"):
        rp.methods.SynFlow(rounds=0)
