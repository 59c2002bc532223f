"""Learning rates by hand, and which parameters decay."""

from __future__ import annotations

import math

import pytest
from torch import nn

from _runs import small
from rankprune.lab.recipes.schema import Optimizer
from rankprune.lab.training.optimizer import build_optimizer, learning_rate


def test_cosine_with_warmup() -> None:
    recipe = small("fashion-dense", "epochs=4", "optimizer.lr=0.4", "schedule={warmup_epochs: 1, min_lr: 0.1}")
    rates = [learning_rate(recipe, step, 2) for step in range(8)]
    assert rates[:2] == pytest.approx([0.2, 0.4])
    assert rates[2:] == pytest.approx([0.1 + 0.3 * (1 + math.cos(math.pi * i / 6)) / 2 for i in range(6)])


def test_steps_at_shares_of_the_run() -> None:
    recipe = small("fashion-dense", "epochs=2", "schedule={name: step, milestones: [0.5, 0.75], gamma: 0.1}")
    assert [learning_rate(recipe, step, 2) for step in range(4)] == pytest.approx([0.1, 0.1, 0.01, 0.001])
    at_55 = small("fashion-dense", "epochs=1", "schedule={name: step, milestones: [0.55], gamma: 0.1}")
    assert [learning_rate(at_55, step, 100) for step in (54, 55)] == pytest.approx([0.1, 0.01])  # 0.55 * 100 is above 55
    constant = small("fashion-dense", "epochs=2", "schedule.name=constant")
    assert {learning_rate(constant, step, 2) for step in range(4)} == {0.1}


def test_cycles_run_the_schedule_through_again() -> None:
    once = small("fashion-dense", "epochs=2", "optimizer.lr=0.1")
    thrice = small("fashion-dense", "epochs=6", "optimizer.lr=0.1", "schedule.cycles=3")
    short = [learning_rate(once, step, 4) for step in range(8)]
    assert [learning_rate(thrice, step, 4) for step in range(24)] == pytest.approx(short * 3)


def test_norms_and_biases_may_be_spared_decay() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 2))
    every = build_optimizer(model, Optimizer(weight_decay=0.1))
    assert [group["weight_decay"] for group in every.param_groups] == [0.1]
    some = build_optimizer(model, Optimizer(name="adamw", weight_decay=0.1, decay_norm_and_bias=False))
    sizes = {group["weight_decay"]: sorted(p.ndim for p in group["params"]) for group in some.param_groups}
    assert sizes == {0.1: [2, 4], 0.0: [1, 1, 1, 1]}


def test_a_timm_vit_keeps_its_positions_from_decay() -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1)
    groups = build_optimizer(model, Optimizer(name="adamw", weight_decay=0.1, decay_norm_and_bias=False)).param_groups
    spared = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in spared}
    assert {"pos_embed", "cls_token", "head.bias", "norm.weight"} <= names
    assert "blocks.0.attn.qkv.weight" not in names
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
