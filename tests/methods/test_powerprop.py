"""PowerProp: the map and its gradient, the fixed point at 0, alone and on Top-KAST's sets."""

from __future__ import annotations

import pytest
import torch
from _line import Line

import rankprune as rp
from _nets import cnn, sgd, train

VALUES = [0.8, -0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.0]


def test_start_and_gradient_by_hand() -> None:
    line = Line(VALUES, rp.methods.PowerProp(alpha=2.0), 0.5, 10)
    assert line.weight.tolist() == pytest.approx([0.8, -0.7, 0.6, 0.5, 0, 0, 0, 0])  # the weights are what they were
    latent = line.layer.state["latent"][0].clone()
    assert torch.allclose(latent, torch.tensor(VALUES).sign() * torch.tensor(VALUES).abs().sqrt())
    grads = torch.tensor([1.0, 2.0, -1.0, 0.5, 1.0, 1.0, 1.0, 1.0])
    line.step(grads.tolist())
    theta = latent.double().requires_grad_()
    (theta * theta.abs() * grads).sum().backward()
    assert torch.allclose(line.layer.state["latent"][0], (latent - 0.1 * theta.grad).float(), atol=1e-6)
    assert line.layer.state["latent"][0, 7] == 0.0  # zero is a fixed point


def test_alpha_one_is_topkast() -> None:
    masks, weights = [], []
    for method in (rp.methods.PowerProp(alpha=1.0), rp.methods.TopKAST(backward_sparsity=0.0, penalty=0.0)):
        model = cnn()
        optimizer = sgd(model)
        sp = rp.attach(model, optimizer, method, sparsity=0.9, total_steps=20)
        train(model, optimizer, 1, 20)
        masks.append(sp.masks)
        weights.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(masks[0][n], masks[1][n]) for n in masks[0])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*weights))


def test_alone_it_trains_dense_and_cuts_once() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "powerprop", sparsity=0.9, total_steps=20, prune_at=0.8)
    total, final = sp.groups[0].total, sp.groups[0].final
    for t in range(1, 21):
        train(model, optimizer, t, t)
        assert sum(int(m.sum()) for m in sp.masks.values()) == (total if t < 16 else final)
    sp.finalize()


def test_topkast_sets_and_distribution() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "powerprop", sparsity=0.9, total_steps=9, backward_sparsity=0.5, distribution="uniform")
    train(model, optimizer, 1, 2)
    for layer in sp.layers:
        assert layer.kept() == pytest.approx(0.1 * layer.numel, abs=1)
        assert int(layer.state["trained"].sum()) == pytest.approx(0.5 * layer.numel, abs=1)


def test_weights_loaded_later_become_latents() -> None:
    line = Line(VALUES, rp.methods.PowerProp(alpha=2.0), 0.5, 10)
    line.step(0.0)
    line.set([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    line.step(0.0)
    assert torch.allclose(line.layer.state["latent"][0] ** 2, torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]))
    assert line.mask == [4, 5, 6, 7]
