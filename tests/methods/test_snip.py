"""SNIP: the score is the gradient of a mask, whatever the scale of the loss, and the probe leaves no trace."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import batch, cnn, sgd, vit

CE = nn.functional.cross_entropy


def masks(model: nn.Module, **options: object) -> dict[str, torch.Tensor]:
    settings = {"data": [batch(1)], "loss_fn": CE, **options}
    rp.prune(model, "snip", sparsity=0.9, **settings)  # type: ignore[arg-type]
    return {n: p.detach() != 0 for n, p in model.named_parameters() if p.ndim > 1}


def test_the_score_is_the_gradient_of_a_mask_of_ones() -> None:
    model = cnn()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    ones = {n: torch.ones_like(p, requires_grad=True) for n, p in weights.items() if p.ndim > 1}
    x, y = batch(1)
    outputs = torch.func.functional_call(model, {n: w * ones.get(n, 1.0) for n, w in weights.items()}, (x,))
    grads = dict(zip(ones, torch.autograd.grad(CE(outputs, y), list(ones.values()))))
    flat = torch.cat([g.abs().flatten() for g in grads.values()])
    kept = round(flat.numel() * 0.1)
    threshold = flat.sort(descending=True).values[kept - 1]
    found = masks(model)
    assert sum(int(m.sum()) for m in found.values()) == kept
    wrong = sum(int((found[n] != (g.abs() >= threshold)).sum()) for n, g in grads.items())
    assert wrong <= 2  # two sums in another order may swap neighbours at the threshold


def test_scaling_the_loss_changes_nothing() -> None:
    one, many = masks(cnn()), masks(cnn(), loss_fn=lambda o, t: 512.0 * CE(o, t))
    assert all(torch.equal(one[n], many[n]) for n in one)


def test_more_batches_are_one_larger_batch_without_batchnorm() -> None:
    parts = [batch(1), batch(2)]
    whole = [tuple(torch.cat(t) for t in zip(*parts))]

    def found(data: list, batches: int) -> dict[str, torch.Tensor]:
        model = vit(dtype=torch.float64)
        data = [(x.double(), y) for x, y in data]
        rp.prune(model, rp.methods.SNIP(batches=batches), sparsity=0.9, data=data, loss_fn=CE)
        return {n: p.detach() != 0 for n, p in model.named_parameters() if p.ndim > 1}

    both, one = found(parts, 2), found(whole, 1)
    assert all(torch.equal(both[n], one[n]) for n in one)
    first = found(parts, 1)
    assert not all(torch.equal(first[n], one[n]) for n in one)


@pytest.mark.parametrize("name", ["snip", "grasp", "mlprune", "woodfisher"])
def test_the_probe_leaves_no_trace(name: str) -> None:
    """Gradients, BatchNorm statistics, modes and all random numbers are as they were; a loader's too."""
    model = nn.Sequential(*cnn()[:3], nn.Dropout(0.5), *cnn()[3:])
    model[1].eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    x, y = batch(1)
    generator = torch.Generator().manual_seed(3)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 4, shuffle=True, generator=generator)
    grads = [p.grad for p in model.parameters()]
    buffers = [b.clone() for b in model.buffers()]
    modes = [m.training for m in model.modules()]
    before = (torch.get_rng_state(), generator.get_state(), random.getstate(), np.random.get_state()[1].copy())
    rp.prune(model, name, sparsity=0.8, data=loader, loss_fn=CE)
    after = (torch.get_rng_state(), generator.get_state(), random.getstate(), np.random.get_state()[1])
    assert all(p.grad is g and bool((g == 1).all()) for p, g in zip(model.parameters(), grads))
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), buffers))
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert before[2] == after[2]
    assert np.array_equal(before[3], after[3])


def test_what_it_needs_it_says() -> None:
    with pytest.raises(ValueError, match="snip needs data and loss"):
        rp.prune(cnn(), "snip", sparsity=0.9)
    with pytest.raises(ValueError, match="data gave snip no batch"):
        rp.prune(cnn(), "snip", sparsity=0.9, data=iter([]), loss_fn=CE)


def test_attach_is_the_same_as_prune() -> None:
    model = cnn()
    sp = rp.attach(model, sgd(model), "snip", sparsity=0.9, total_steps=5, data=[batch(1)], loss_fn=CE)
    assert all(torch.equal(sp.masks[n], m) for n, m in masks(cnn()).items())
