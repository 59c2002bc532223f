"""Rank work is shared out over processes by cost: who works what, and that each layer is worked once."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import rankprune as rp
from _ranks import on_ranks
from rankprune.methods.shared import rank_term
from rankprune.rank.workers import assign_owners

COSTS = st.lists(st.integers(1, 20), min_size=1, max_size=7)


def test_the_costliest_goes_first_to_the_idlest() -> None:
    assert assign_owners([1, 5, 4, 3, 3], 2) == [1, 0, 1, 1, 0]  # 5 to 0, 4 to 1, 3 to 1 (4 < 5), 3 to 0 (5 < 7), 1 to 1 (7 < 8)
    assert assign_owners([2, 2], 4) == [0, 1]
    assert assign_owners([], 3) == []


@given(COSTS, st.integers(1, 3))
def test_the_longest_is_within_graham_s_bound(costs: list[int], count: int) -> None:
    load = [sum(c for c, o in zip(costs, assign_owners(costs, count)) if o == rank) for rank in range(count)]
    assert sum(load) == sum(costs)
    best = min(
        max(sum(c for c, o in zip(costs, deal) if o == rank) for rank in range(count))
        for deal in itertools.product(range(count), repeat=len(costs))
    )
    assert max(load) <= (4 / 3 - 1 / (3 * count)) * best + 1e-9


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 7, 3), nn.ReLU(), nn.Conv2d(7, 24, 3), nn.ReLU(), nn.ConvTranspose2d(24, 9, 3), nn.Flatten(),
        nn.LazyLinear(5),
    )  # fmt: skip


def worked_and_found(rank: int, world: int) -> dict[str, Any]:
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    worked: list[tuple[int, ...]] = []
    compute = rank_term.rank_grads

    def counted(weights: Any, delta: float) -> Any:
        worked.extend(tuple(w.shape) for w in weights)
        return compute(weights, delta)

    rank_term.rank_grads = counted
    found: dict[str, Any] = {}
    for how in ("ddp", "fsdp"):
        model = net()
        model(torch.zeros(1, 3, 8, 8))
        if how == "ddp":
            model = DistributedDataParallel(model)
        else:
            fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sp = rp.attach(model, optimizer, "rpg", sparsity=0.5, total_steps=4, every=1, rank_layers="all")
        worked.clear()
        parts = rank_term.rank_gradients(sp.layers, 0.2, model)
        found[how] = {layer.key: layer.whole(part) for layer, part in zip(sp.layers, parts)}
        found[f"{how}/worked"] = sorted(worked)
    return found


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.long)])
def test_each_layer_is_worked_by_one_process_and_known_to_all(world: int, tmp_path: Path) -> None:
    ranks = on_ranks(world, worked_and_found, tmp_path)
    model = net()
    model(torch.zeros(1, 3, 8, 8))
    weights = {name: p.detach() for name, p in model.named_parameters() if p.ndim > 1}
    alone = {
        name: rp.rank.rank_grad(w.transpose(0, 1), 0.2).transpose(0, 1) if name == "4.weight" else rp.rank.rank_grad(w, 0.2)
        for name, w in weights.items()
    }
    shapes = sorted(tuple(w.transpose(0, 1).shape if name == "4.weight" else w.shape) for name, w in weights.items())
    for how in ("ddp", "fsdp"):
        assert sorted(shape for found in ranks for shape in found[f"{how}/worked"]) == shapes  # once each, over all
        assert all(found[f"{how}/worked"] for found in ranks)
        for found in ranks:
            for name, grad in alone.items():
                assert torch.equal(found[how][name], grad), (how, name)
