"""What attaching costs on ordinary steps: ResNet-18, 64 x 3 x 48 x 48, RigL at 90 %, against the plain loop.

Two twins step in turn, so that both see the same machine. Mask updates are left out of the timing (they happen once in
`every` steps; `benchmarks/update.py` times them). Prints both, the ratio, and the memory the sparsifier holds.

    python benchmarks/overhead.py
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import nn

import rankprune as rp
from _timing import interleave


def time_in_hooks(sp: rp.Sparsifier, step: Callable[[], None], rounds: int = 10) -> float:
    """The share of a step spent in our hooks, median: free of the noise between two runs, blind to what they slow."""
    spent = 0.0

    def timed(hook: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            nonlocal spent
            start = time.perf_counter()
            try:
                return hook(*args)
            finally:
                spent += time.perf_counter() - start

        return run

    tables = [h for o in sp.optimizers for h in (o._optimizer_step_pre_hooks, o._optimizer_step_post_hooks)]
    for table in [*tables, *(layer.parameter._post_accumulate_grad_hooks for layer in sp.layers)]:
        for key in table:
            table[key] = timed(table[key])
    shares = []
    for _ in range(rounds):
        spent, start = 0.0, time.perf_counter()
        step()
        whole = time.perf_counter() - start
        shares.append(spent / (whole - spent))
    return statistics.median(shares)


def main() -> None:
    torch.manual_seed(0)
    plain = torchvision.models.resnet18(weights=None)
    sparse = copy.deepcopy(plain)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4) for m in (plain, sparse)]
    sp = rp.attach(sparse, optimizers[1], "rigl", sparsity=0.9, total_steps=10**6, every=10**5)
    x, y = torch.randn(64, 3, 48, 48), torch.randint(0, 1000, (64,))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    runs = {"plain loop": lambda: step(plain, optimizers[0]), "rigl attached": lambda: step(sparse, optimizers[1])}
    times = interleave(runs, rounds=36, warmup=4)
    for timing in times.values():
        print(timing)
    base, ours = times.values()
    print(f"ratio, minima: {ours.minimum / base.minimum:.3f}x   medians: {ours.median / base.median:.3f}x   "
          f"median of the rounds' ratios: {ours.paired(base):.3f}x")
    inside = time_in_hooks(sp, lambda: step(sparse, optimizers[1]))
    print(f"inside rankprune's hooks: {inside:.1%} of the rest of the step")
    bytes_held = sum(layer.mask.numel() * layer.mask.element_size() for layer in sp.layers)
    weights = sum(layer.numel for layer in sp.layers)
    print(f"memory: {bytes_held / weights:.2f} bytes a weight")


if __name__ == "__main__":
    main()
