"""Two processes: every method's masks agree on all ranks, with DDP and with FSDP2. One launch tests them all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import rankprune as rp
from _nets import batch
from _ranks import assert_same, on_ranks
from rankprune.core.settings import settings_of
from rankprune.core.shards import RowShards

STEPS = 12


def net() -> nn.Module:
    """Without BatchNorm, so that two half batches are one whole batch; odd sizes, so that shards are uneven."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 7, 3, padding=1), nn.GroupNorm(1, 7), nn.ReLU(), nn.Conv2d(7, 10, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(90, 10),
    ).double()  # fmt: skip


def run(name: str, model: nn.Module, rank: int, world: int, resume_at: int | None = None) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    options: dict[str, Any] = {"every": 3} if "every" in settings_of(rp.method_info(name).cls) else {}
    data = [batch(100 + i, torch.float64) for i in range(4)]  # for the methods that need some
    options |= {"data": data, "loss_fn": nn.functional.cross_entropy}
    sp = rp.attach(model, optimizer, name, sparsity=0.8, total_steps=STEPS, seed=1, **options)
    share = 8 // world
    for step in range(1, STEPS + 1):
        x, y = batch(step, torch.float64)
        mine = slice(rank * share, (rank + 1) * share)
        nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == resume_at:
            sp.load_state_dict(sp.state_dict())
        for layer in sp.layers:
            assert layer.weight[~layer.mask].count_nonzero() == 0
    found = {layer.key: layer.whole(layer.mask.to(torch.uint8)).bool() for layer in sp.layers}
    report = sp.finalize()
    assert report.kept == round(0.2 * report.total) == sum(int(m.sum()) for m in found.values())
    weights = {f"w:{s.key}": s.whole(s.weight.clone()) for s in sp.layers}
    return {**found, **weights}


def work(rank: int, world: int) -> dict[str, Any]:
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    found: dict[str, Any] = {}
    for name in rp.list_methods():
        found[f"ddp/{name}"] = run(name, DistributedDataParallel(net()), rank, world)
        sharded = net()
        for layer in (sharded[0], sharded[3], sharded[6]):
            fully_shard(layer)
        fully_shard(sharded)
        if "data" in rp.method_info(name).needs:  # they differentiate the loss by themselves, and say that they cannot
            with pytest.raises(ValueError, match=f"{name} .* sharded weights do not allow"):
                run(name, sharded, rank, world)
            continue
        found[f"fsdp/{name}"] = run(name, sharded, rank, world, resume_at=5)
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, torch.Tensor]]]:
    return on_ranks(2, work, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", rp.list_methods())
def test_ranks_agree_with_each_other_and_with_one_process(how: str, name: str, ranks: list[dict[str, dict[str, torch.Tensor]]]) -> None:
    if how == "fsdp" and "data" in rp.method_info(name).needs:
        pytest.skip(f"{name} refuses sharded weights, as the workers have checked")
    alone = run(name, net(), 0, 1)
    for found in ranks:
        assert_same(found[f"{how}/{name}"], alone)


def test_counts_are_sent_from_the_device_of_the_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from the default device or the CPU, which a process group of NCCL cannot send from."""
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    devices = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: devices.append(tensor.device.type))
    with torch.device("meta"):
        shards = RowShards(None, torch.ones(3, 2, device="cpu"))  # type: ignore[arg-type]
        shards.before(4)
    assert devices == ["cpu", "cpu"]
