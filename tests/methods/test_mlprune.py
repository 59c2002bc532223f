"""MLPrune: Kronecker factors against a dense Fisher, patches against autograd, the surgeon's closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import rankprune as rp
from _nets import batch, cnn, sgd, vit
from rankprune.methods.shared.kfac import damped_inverse, kronecker_factors

CE = nn.functional.cross_entropy


def factors(model: nn.Module, data: list, batches: int = 10**6, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    sp = rp.attach(model, sgd(model), "mlprune", sparsity=0.5, total_steps=9, data=data, seed=seed)
    found = kronecker_factors(sp.groups[0], batches)
    sp.detach()
    return found


def true_fisher(model: nn.Module, weight: nn.Parameter, x: Tensor) -> Tensor:
    """E over inputs and the model's own labels of ∇ log p ∇ log pᵀ, by autograd, label by label."""
    total = torch.zeros(weight.numel(), weight.numel(), dtype=weight.dtype)
    for sample in x:
        logp = model(sample.unsqueeze(0)).log_softmax(1)[0]
        for value in logp:
            (g,) = torch.autograd.grad(value, weight, retain_graph=True)
            total += value.exp().detach() * torch.outer(g.flatten(), g.flatten())
    return total / len(x)


def test_a_kronecker_exact_fisher() -> None:
    """One linear layer whose logits are about 0: the output's part does not depend on the input, and F = G ⊗ A."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3, bias=False).double()
    with torch.no_grad():
        model.weight.mul_(1e-6)
    x = torch.randn(512, 4).double() @ torch.randn(4, 4).double()
    data = [(x, torch.zeros(512))] * 100
    ((a, g),) = factors(model, data)
    fisher = true_fisher(model, model.weight, x[:512])
    assert torch.allclose(torch.kron(g, a), fisher, atol=0.05 * float(fisher.diagonal().mean()))
    # softmax has no curvature along (1, 1, 1): damp both sides alike
    inverse = torch.linalg.inv(torch.kron(
        g + 0.1 * g.diagonal().mean() * torch.eye(3).double(), a + 0.1 * a.diagonal().mean() * torch.eye(4).double()))  # fmt: skip
    product = torch.outer(damped_inverse(g, 0.1).diagonal(), damped_inverse(a, 0.1).diagonal()).flatten()
    assert torch.allclose(product, inverse.diagonal(), rtol=1e-9)


def pooled() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.Tanh(), nn.Conv2d(3, 4, 3, stride=2, dilation=1), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    ).double()  # fmt: skip


def test_the_trace_is_that_of_the_dense_fisher() -> None:
    """Also before a pool, where K-FAC alone is far too small because positions move together."""
    model = pooled()
    x = torch.randn(40, 2, 7, 7).double()
    found = factors(model, [(x, torch.zeros(40))] * 60)
    for (a, g), weight in zip(found, [model[0].weight, model[2].weight, model[6].weight]):
        trace = float(true_fisher(model, weight, x).trace())
        assert float(a.trace() * g.trace()) == pytest.approx(trace, rel=0.06)


def test_input_factors_are_those_of_the_patches() -> None:
    """A is the second moment of the inputs of each output position; the convolution of patches is the layer's output."""
    model = pooled()
    x = torch.randn(5, 2, 7, 7).double()
    (a, _), (b, _), (c, _) = factors(model, [(x, torch.zeros(5))])
    first = nn.functional.unfold(x, 3, padding=1).transpose(1, 2).flatten(0, 1)
    hidden = model[:2](x).detach()
    second = nn.functional.unfold(hidden, 3, stride=2).transpose(1, 2).flatten(0, 1)
    third = model[:6](x).detach()
    for found, rows in ((a, first), (b, second), (c, third)):
        moment = rows.T @ rows
        assert torch.allclose(found, moment / moment.trace(), rtol=1e-9, atol=1e-14)


def test_output_factors_see_gradients_before_an_in_place_relu() -> None:
    inplace, apart = pooled(), pooled()
    apart[3] = nn.ReLU()
    x = torch.randn(5, 2, 7, 7).double()
    for one, other in zip(factors(inplace, [(x, torch.zeros(5))]), factors(apart, [(x, torch.zeros(5))])):
        assert all(torch.equal(s, t) for s, t in zip(one, other))


def test_layers_without_visible_inputs_use_their_gradient() -> None:
    """Attention, and grouped, transposed and 3-D convolutions: factors of the right shape and trace, and they prune."""
    model = vit(dtype=torch.float64)
    data = [batch(i, torch.float64) for i in range(30)]
    found = factors(model, data)
    names = [n for n, p in model.named_parameters() if p.ndim > 1]
    sizes = {n: (a.shape[0], g.shape[0]) for n, (a, g) in zip(names, found)}
    assert sizes["block.self_attn.in_proj_weight"] == (16, 48)
    assert sizes["patch.weight"] == (48, 16)
    i = names.index("block.self_attn.in_proj_weight")
    x = torch.cat([x for x, _ in data])
    model.eval()
    fisher = true_fisher(model, model.block.self_attn.in_proj_weight, x[:40])
    assert float(found[i][0].trace() * found[i][1].trace()) == pytest.approx(float(fisher.trace()), rel=0.4)
    odd = nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=2), nn.ConvTranspose2d(4, 6, 2), nn.Unflatten(1, (2, 3)), nn.Conv3d(2, 3, 2), nn.Flatten(2),
        nn.Conv1d(3, 2, 3, padding=2, stride=2), nn.Flatten(), nn.LazyLinear(5),
    )  # fmt: skip
    x = torch.randn(6, 4, 6, 6)
    odd(x)
    report = rp.prune(odd, "mlprune", sparsity=0.7, data=[(x, None)])
    assert report.kept == round(0.3 * report.total)


def test_no_curvature_of_its_own_is_magnitude() -> None:
    """A = I, G = I: w² times a constant."""
    a, g = torch.eye(6).double(), torch.eye(4).double()
    product = torch.outer(damped_inverse(g, 0.1).diagonal(), damped_inverse(a, 0.1).diagonal())
    assert torch.allclose(product, product[0, 0].expand(4, 6))


def test_one_weight_with_compensation() -> None:
    """The cheapest goes to exactly 0, and ½ tr(ΔWᵀ G ΔW A) is its cost under the damped factors."""
    torch.manual_seed(4)
    model = nn.Linear(5, 4).double()
    x = torch.randn(64, 5).double()
    w = model.weight.detach().clone()
    data = [(x, None)]
    sp = rp.attach(model, sgd(model), "mlprune", sparsity=0.5, total_steps=9, data=data)
    ((a, g),) = kronecker_factors(sp.groups[0], 1)
    sp.detach()
    a = a + 0.1 * a.diagonal().mean() * torch.eye(5).double()
    g = g + 0.1 * g.diagonal().mean() * torch.eye(4)
    a_inverse, g_inverse = torch.linalg.inv(a), torch.linalg.inv(g)
    cost = w.square() / (2 * torch.outer(g_inverse.diagonal(), a_inverse.diagonal()))
    i, j = divmod(int(cost.argmin()), 5)
    rp.prune(model, rp.methods.MLPrune(compensate=True), sparsity=0.05, data=data)
    moved = model.weight.detach() - w
    assert model.weight[i, j] == 0
    factor = w[i, j] / (g_inverse[i, i] * a_inverse[j, j])
    assert torch.allclose(moved, -factor * torch.outer(g_inverse[:, i], a_inverse[:, j]), atol=1e-12)
    assert torch.isclose((moved.T @ g @ moved @ a).trace() / 2, cost[i, j], rtol=1e-8)


def test_labels_are_drawn_by_seed() -> None:
    data = [batch(1)]
    one, same, other = (factors(cnn(), data, seed=s)[0][1] for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_outputs_that_are_no_logits_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    with pytest.raises(ValueError, match="mlprune draws labels from the model"):
        rp.prune(model, "mlprune", sparsity=0.5, data=[(torch.randn(3, 4), None)])


def test_batchnorm_is_in_eval_mode() -> None:
    """The inputs of the second layer are those that the running statistics make."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2.0)
    x = torch.randn(16, 6).double()
    (_, _), (a, _) = factors(model, [(x, torch.zeros(16))])
    hidden = model[:2].eval()(x).detach()
    assert torch.allclose(a, hidden.T @ hidden / hidden.square().sum(), rtol=1e-9)
