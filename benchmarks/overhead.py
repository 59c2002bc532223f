"""What attaching costs on ordinary steps: ResNet-18, 64 x 3 x 48 x 48, at 90 %, against the plain loop.

Three copies of the network step in turn, so that all see the same machine: plain, with RigL and with Feather. RigL's
mask updates are left out of the timing (they happen once in `every` steps; `benchmarks/update.py` times them). Feather
selects masks at every step, and is timed at its final sparsity. Prints times, ratios and the memory of the masks.

    python benchmarks/overhead.py
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from functools import partial
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
    settings: dict[str, dict[str, int]] = {"rigl": {"every": 10**5}, "feather": {"prune_end": 2}}
    networks = {"plain loop": plain, **{f"{name} attached": copy.deepcopy(plain) for name in settings}}
    optimizers = [
        torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4) for m in networks.values()
    ]
    attached = [
        rp.attach(model, optimizer, name, sparsity=0.9, total_steps=10**6, **options)
        for model, optimizer, (name, options) in zip(list(networks.values())[1:], optimizers[1:], settings.items())
    ]
    x, y = torch.randn(64, 3, 48, 48), torch.randint(0, 1000, (64,))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    runs = {name: partial(step, model, o) for (name, model), o in zip(networks.items(), optimizers)}
    base, *others = interleave(runs, rounds=36, warmup=4).values()
    print(base)
    for sp, run, ours in zip(attached, list(runs.values())[1:], others):
        print(ours)
        print(
            f"ratio, minima: {ours.minimum / base.minimum:.3f}x   medians: {ours.median / base.median:.3f}x   "
            f"median of the rounds' ratios: {ours.paired(base):.3f}x"
        )
        print(f"inside rankprune's hooks: {time_in_hooks(sp, run):.1%} of the rest of the step")
    sp = attached[0]
    bytes_held = sum(layer.mask.numel() * layer.mask.element_size() for layer in sp.layers)
    weights = sum(layer.numel for layer in sp.layers)
    print(f"memory: {bytes_held / weights:.2f} bytes per weight")


if __name__ == "__main__":
    main()
