"""RigL against rigl-torch, an independent implementation: the same weights, masks, data and schedule."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import batch

pytest.importorskip("torchvision", reason="rigl-torch imports torchvision")
other = pytest.importorskip("rigl_torch.RigL", reason="compares with rigl-torch where it is installed")


def net() -> nn.Module:
    """Layers whose only weights are prunable: rigl-torch takes everything with a weight but BatchNorm2d."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    ).double()  # fmt: skip


def test_same_masks_and_weights_for_a_whole_run() -> None:
    ours, theirs = net(), net()
    settings = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
    first, second = (torch.optim.SGD(m.parameters(), **settings) for m in (ours, theirs))
    scheduler = other.RigLScheduler(
        theirs, second, dense_allocation=0.3, T_end=45, delta=5, alpha=0.3, ignore_linear_layers=False
    )
    names = ["0.weight", "2.weight", "5.weight"]
    # It leaves the first layer dense under its uniform distribution; its random masks become ours.
    sp = rp.attach(ours, first, rp.methods.RigL(every=5, update_end=45, grow=0.3), sparsity=0.7, total_steps=60, dense=["0"])
    sp.set_masks({n: m for n, m in zip(names, scheduler.backward_masks) if m is not None})
    ours.load_state_dict(theirs.state_dict())
    start = {n: m.clone() for n, m in sp.masks.items()}
    for step in range(1, 61):
        x, y = batch(step, torch.float64)
        nn.functional.cross_entropy(ours(x), y).backward()
        nn.functional.cross_entropy(theirs(x), y).backward()
        first.step()
        if scheduler():
            second.step()
        first.zero_grad()
        second.zero_grad()
        for name, mask in zip(names, scheduler.backward_masks):
            if mask is not None:
                assert torch.equal(sp.masks[name], mask), (step, name)
        for a, b in zip(ours.parameters(), theirs.parameters()):
            assert torch.allclose(a, b, atol=1e-12), step
    assert all(not torch.equal(start[n], sp.masks[n]) for n in start)
