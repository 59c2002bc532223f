"""The cost of an RPG mask update on 1, 2 and 4 ranks, and on up to 1,024 ranks and 10 billion weights by simulation.

Measured: a whole update (selection, masks, rank work) with replicated (DDP) and with sharded weights (FSDP2), gloo, one
thread a rank; time is the slowest rank's, bytes are what a rank hands to collectives, counted at the calls. More ranks
than free cores share them, so their time cannot fall: the load of the machine is printed.
Simulated: from the costs of layers measured here on one thread, and a network that is assumed.

    python benchmarks/scale.py [--simulate]
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import rankprune as rp
from _scale_model import HISTOGRAM, PASSES, SELECTIONS, SMALL, Measured, Network, replicated, sharded, transformer
from rankprune.rank.gradient import cost

WIDTH, BLOCKS, ROUNDS = 256, 3, 3
FABRICS = {"100 Gbit/s": Network(12.5e9, 20e-6), "10 Gbit/s": Network(1.25e9, 50e-6)}
SIZES = {"100 million": (1024, 8), "1 billion": (2048, 20), "10 billion": (4096, 50)}  # width, blocks
RANKS = (1, 4, 16, 64, 256, 1024)
MIB, GIB = 2**20, 2**30


def net(shapes: list[tuple[int, int]]) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(n, m, bias=False) for m, n in shapes)


def attached(model: nn.Module, lam: float | None = None) -> Callable[[], None]:
    """One update of this model, again and again from the same masks."""
    method = rp.methods.RPG(every=10, rank_layers="all", lam=lam)
    sp = rp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), method, sparsity=0.9, total_steps=1000)
    (group,) = sp.groups
    for layer in group.layers:
        layer.parameter.grad = torch.ones_like(layer.parameter)
        local = layer.parameter.grad.to_local() if layer.shards else layer.parameter.grad
        local.copy_(layer.part(torch.randn(layer.shape, generator=torch.Generator().manual_seed(1))))
    group.step = 500  # in mid-schedule: some fall out, some stay, some grow

    def update() -> None:
        for layer in group.layers:
            layer.mask.fill_(True)
        with torch.no_grad():
            group.run_update()

    return update


def best(run: Callable[[], None], rounds: int = ROUNDS) -> float:
    run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


class Wire:
    """Counts the bytes handed to collectives, by wrapping them for this process."""

    NAMES = ("all_reduce", "broadcast", "all_gather", "gather", "scatter")

    def __init__(self) -> None:
        self.bytes = self.calls = 0
        for name in self.NAMES:
            setattr(dist, name, self._counted(getattr(dist, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            tensor = next(a for a in args if isinstance(a, torch.Tensor))
            self.bytes += tensor.numel() * tensor.element_size()
            self.calls += 1
            return call(*args, **kwargs)

        return counted


def worker(rank: int, world: int, port: int, results: SimpleQueue[Any]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    model, split = net(transformer(WIDTH, BLOCKS)), net(transformer(WIDTH, BLOCKS))
    for layer in split:
        fully_shard(layer)
    modules = {"replicated": DistributedDataParallel(model), "sharded": split}
    wire = Wire()
    for kind, module in modules.items():
        update = attached(module)
        wire.bytes = wire.calls = 0
        update()
        sent, calls = wire.bytes, wire.calls
        dist.barrier()
        results.put((kind, rank, best(update), sent, calls))
        dist.barrier()
    dist.destroy_process_group()


def measure_ranks() -> None:
    weights = sum(m * n for m, n in transformer(WIDTH, BLOCKS))
    print(f"measured: {weights:,} weights in {4 * BLOCKS} layers, RPG with rank_layers='all', minimum of {ROUNDS}")
    print(f"{'':<12}{'ranks':>6}{'slowest rank':>16}{'handed to collectives, a rank':>32}{'calls':>8}")
    for world in (1, 2, 4):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        results = mp.get_context("spawn").SimpleQueue()
        context = mp.spawn(worker, args=(world, port, results), nprocs=world, join=False)
        found = [results.get() for _ in range(2 * world)]
        while not context.join():
            pass
        for kind in ("replicated", "sharded"):
            mine = [row for row in found if row[0] == kind]
            slow, sent, calls = (max(row[i] for row in mine) for i in (2, 3, 4))
            assert (sent // 2**20, calls) == expected(kind, world), "the simulation counts other messages"
            print(f"{kind:<12}{world:>6}{slow * 1e3:>13.0f} ms{sent / MIB:>28.2f} MiB{calls:>8}")


def expected(kind: str, world: int) -> tuple[int, int]:
    """Whole MiB and calls of one update by the simulation's count, which leaves out the bytes of small all-reduces."""
    shapes = transformer(WIDTH, BLOCKS)
    weights = 4 * sum(m * n for m, n in shapes)
    if kind == "replicated":
        return weights // 2**20, len(shapes)
    histograms = SELECTIONS * PASSES * len(shapes)
    return (histograms * HISTOGRAM + 2 * weights // world) // 2**20, histograms + (SMALL + 2) * len(shapes)


def measure_layers() -> Measured:
    torch.set_num_threads(1)
    small, large = [(32, 32)] * 20, [(1024, 1024)] * 4
    per_layer = best(attached(net(small), lam=0.0)) / len(small)
    per_weight = best(attached(net(large), lam=0.0)) / sum(m * n for m, n in large)
    print("\nmeasured on one thread, for the simulation")
    print(f"selection and masks: {per_layer * 1e3:.2f} ms a layer and {per_weight * 1e9:.1f} ns a weight")
    rates = []
    for shape in ((256, 1024), (512, 2048), (1024, 1024), (1024, 4096)):
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        seconds = best(lambda weight=weight: rp.rank.rank_grads([weight], 0.2), 2)  # type: ignore[misc]
        rates.append(cost(shape) / seconds)
        print(f"rank gradient of {shape[0]}x{shape[1]}: {seconds * 1e3:.0f} ms, {rates[-1] / 1e9:.1f} G operations/s")
    return Measured(per_weight, per_layer, 1 / rates[-1])


def simulate(on: Measured) -> None:
    print(f"""
simulated: one mask update of a transformer; nothing below was run
assumptions
- selection costs the measured time a layer and a weight, divided by the ranks where weights are sharded;
- a rank gradient runs at the speed measured for the largest layer above, on one thread, however large the layer is:
  a CPU core's speed, so a GPU's or a many-core node's time is shorter;
- layers go to ranks by rankprune's own assignment; a layer is never split, so more ranks than layers do not help;
- sharded: {SELECTIONS} selections x {PASSES} histograms of {HISTOGRAM // 1024} KiB and {SMALL} small all-reduces a
  layer, one after another; each layer goes to its owner and its gradient comes back, one layer after another;
- replicated: the gradient of each layer is broadcast in a pipelined chain;
- all-reduce is a ring in bytes and a tree in latency; the links are otherwise idle; nothing overlaps;
- memory is what an update needs beyond weights, gradients and optimizer: masks, rank gradients, gathered layers.""")
    for fabric, network in FABRICS.items():
        print(f"\n{fabric} and {network.latency * 1e6:.0f} us between ranks")
        head = f"{'weights':<14}{'layers':>7}  {'':<11}{'ranks':>6}{'select':>10}{'rank work':>11}{'wire':>10}"
        print(f"{head}{'all':>10}{'sent a rank':>14}{'memory a rank':>15}")
        for size, (width, blocks) in SIZES.items():
            shapes = transformer(width, blocks)
            for ranks in RANKS:
                for kind, model in (("sharded", sharded), ("replicated", replicated)):
                    c = model(shapes, ranks, on, network)
                    times = f"{c.select:>8.1f} s{c.rank_work:>9.1f} s{c.wire:>8.2f} s{c.seconds:>8.1f} s"
                    space = f"{c.sent / GIB:>10.3f} GiB{c.memory / GIB:>11.3f} GiB"
                    print(f"{size:<14}{len(shapes):>7}  {kind:<11}{ranks:>6}{times}{space}")


def main() -> None:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    if "--simulate" not in sys.argv:
        measure_ranks()
    simulate(measure_layers())
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
