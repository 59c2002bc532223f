"""Two processes: with every extra the masks and weights of DDP and of FSDP2 are those of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import batch
from _ranks import assert_same, on_ranks
from rankprune.core.settings import settings_of
from rankprune.extras.rank_floor import candidates

STEPS = 12
CASES = {
    "gmp+ham": {},
    "gmp+sparseopt": {},
    "feather+sparseopt": {},
    "rpg+rank_floor": {"rank_floor": {"cover": "row", "most": 0.5}},
    "rigl+rank_floor": {"rank_floor": {"cover": "matching", "most": 0.5}},
    "feather+rank_floor": {"rank_floor": {"cover": "row+column", "most": 0.5}},
    "rpg+grace": {"grace": {"most": 0.1}},
    "gmp+tail_taylor": {},
    "feather+rank_steer": {"rank_steer": {"every": 3, "above": 0.2}},
}  # fmt: skip


def net() -> nn.Module:
    """Without BatchNorm, so that two half batches are one whole batch; odd sizes, so that shards are uneven."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 7, 3, padding=1), nn.GroupNorm(1, 7), nn.ReLU(), nn.ConvTranspose2d(7, 10, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(90, 10),
    ).double()  # fmt: skip


def run(name: str, model: nn.Module, rank: int, world: int) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    options: dict[str, Any] = {"every": 3} if "every" in settings_of(rp.method_info(name.split("+")[0]).cls) else {}
    sp = rp.attach(model, optimizer, name, sparsity=0.9, total_steps=STEPS, seed=1, **options, **CASES[name])
    share, worth = 8 // world, dict[str, torch.Tensor]()
    for step in range(1, STEPS + 1):
        x, y = batch(step, torch.float64)
        mine = slice(rank * share, (rank + 1) * share)
        nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
        if step == 6:  # what the floor would choose among, while the gradients are dense
            worth = {f"w:{layer.key}/worth": layer.whole(candidates(layer)) for layer in sp.layers}
        optimizer.step()
        optimizer.zero_grad()
    found = {layer.key: layer.whole(layer.mask.to(torch.uint8)).bool() for layer in sp.layers}
    sp.finalize()
    return {**found, **worth, **{f"w:{s.key}": s.whole(s.weight.clone()) for s in sp.layers}}


def work(rank: int, world: int) -> dict[str, Any]:
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    found: dict[str, Any] = {}
    for name in CASES:
        found[f"ddp/{name}"] = run(name, DistributedDataParallel(net()), rank, world)
        sharded = net()
        fully_shard(sharded)
        found[f"fsdp/{name}"] = run(name, sharded, rank, world)
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, torch.Tensor]]]:
    return on_ranks(2, work, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", CASES)
def test_ranks_agree_with_one_process(how: str, name: str, ranks: list[dict[str, dict[str, torch.Tensor]]]) -> None:
    alone = run(name, net(), 0, 1)
    for found in ranks:
        assert_same(found[f"{how}/{name}"], alone)
