"""STR: the soft threshold, how it learns, and the controller that lands on the count."""

from __future__ import annotations

import pytest
import torch
from _line import Line
from torch import nn

import rankprune as rp
from _nets import cnn, sgd, train


def test_shown_weight_and_masked_gradient_by_hand() -> None:
    line = Line([0.5, -0.4, 0.3, 0.1], rp.methods.STR(prune_end=1), 0.5, 10)
    line.step(0.0)
    assert line.weight.tolist() == pytest.approx([0.2, -0.1, 0.0, 0.0])
    line.step([1.0, 1.0, 1.0, -1.0])
    assert line.site.state["latent"][0].tolist() == pytest.approx([0.4, -0.5, 0.3, 0.1])  # no gradient below


def test_the_slope_of_s_is_that_of_the_loss() -> None:
    """∂L/∂s against autograd through sign(W) relu(|W| - σ(s + c))."""
    torch.manual_seed(0)
    line = Line(torch.randn(40).mul(0.3).tolist(), rp.methods.STR(prune_end=1), 0.5, 10)
    line.step(0.0)
    target, site = torch.randn(1, 40), line.site
    latent, threshold = site.state["latent"].clone(), site.state["threshold"]
    s = torch.logit(threshold).double().requires_grad_()  # s + c
    shown = latent.double().sign() * torch.relu(latent.double().abs() - torch.sigmoid(s))
    assert torch.allclose(shown.detach().float(), line.weight, atol=1e-6)
    (shown * target)[site.mask].sum().backward()  # the one just at the threshold is out
    before = float(site.state["s"])
    line.step(target[0].tolist())
    assert float(site.state["s"]) == pytest.approx(before - 0.1 * float(s.grad), rel=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_a_loss_s_decays_like_a_weight(momentum: float) -> None:
    line = Line([0.5, -0.4, 0.3, 0.1], rp.methods.STR(prune_end=1), 0.5, 50, momentum=momentum, weight_decay=0.01)
    line.site.state["s"].fill_(-3.0)
    twin = nn.Parameter(torch.tensor(-3.0))
    other = torch.optim.SGD([twin], lr=0.1, momentum=momentum, weight_decay=0.01)
    for t in range(20):
        line.step(0.0)
        twin.grad = torch.zeros(())
        other.step()
        assert float(line.site.state["s"]) == pytest.approx(twin.item(), rel=1e-5)
        if momentum == 0.0:
            assert twin.item() == pytest.approx(-3.0 * (1 - 0.1 * 0.01) ** (t + 1), rel=1e-5)


def test_a_layer_with_a_higher_s_keeps_less_and_the_count_stands() -> None:
    counts = []
    for s in (-1.0, 0.0, 1.0):
        model = cnn()
        optimizer = sgd(model, lr=0.0)
        sp = rp.attach(model, optimizer, rp.methods.STR(prune_end=1), sparsity=0.9, total_steps=9)
        sp.sites[1].state["s"].fill_(s)
        train(model, optimizer, 1, 1)
        counts.append(sp.sites[1].kept())
        assert sum(site.kept() for site in sp.sites) == sp.groups[0].final
    assert counts[0] > counts[1] > counts[2]


def test_layers_learn_thresholds_of_their_own() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "str", sparsity=0.9, total_steps=40)
    train(model, optimizer, 1, 40)
    shared = [torch.logit(site.state["threshold"]) - site.state["s"] for site in sp.sites]
    assert torch.stack(shared).std() < 1e-4  # one c for all
    assert len({float(site.state["s"]) for site in sp.sites}) == len(sp.sites)
    sp.finalize()
