"""SViT-E: every weight of a transformer takes part, layer counts stand, updates end at 80 %."""

from __future__ import annotations

import torch

import rankprune as rp
from _nets import adamw, train, vit
from rankprune.core.budget import layer_counts


def test_counts_stand_and_updates_end() -> None:
    model = vit()
    optimizer = adamw(model)
    sp = rp.attach(model, optimizer, "svite", sparsity=0.8, total_steps=50, every=5)
    names = set(sp.masks)
    assert {"patch.weight", "head.weight", "block.self_attn.in_proj_weight"} <= names
    counts = [int(m.sum()) for m in sp.masks.values()]
    assert counts == layer_counts([layer.shape for layer in sp.layers], sp.budget, "erk")
    seen: list[list[torch.Tensor]] = []

    def watch(_: int) -> None:
        assert [int(m.sum()) for m in sp.masks.values()] == counts
        seen.append([m.clone() for m in sp.masks.values()])

    train(model, optimizer, 1, 50, watch)
    moved = [t + 1 for t in range(1, 50) if not all(torch.equal(a, b) for a, b in zip(seen[t - 1], seen[t]))]
    assert moved == [5, 10, 15, 20, 25, 30, 35]  # below 0.8 · 50


def test_the_step_is_taken_and_then_the_mask_moves() -> None:
    """RigL's update replaces the step, this one follows it: the weights that stay have moved."""
    model = vit()
    optimizer = adamw(model)
    sp = rp.attach(model, optimizer, "svite", sparsity=0.8, total_steps=10, every=1)
    before = model.head.weight.detach().clone()
    old = sp.masks["head.weight"].clone()
    train(model, optimizer, 1, 1)
    stay = old & sp.masks["head.weight"]
    assert (model.head.weight.detach()[stay] != before[stay]).any()
    assert (model.head.weight.detach()[sp.masks["head.weight"] & ~old] == 0).all()
