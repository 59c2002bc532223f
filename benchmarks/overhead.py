"""What attaching costs on ordinary steps: ResNet-18, 64 x 3 x 48 x 48, RigL at 90 %, against the plain loop.

Two twins step in turn, so that both see the same machine. Mask updates are left out of the timing (they happen once in
`every` steps; `benchmarks/update.py` times them). Prints both, the ratio, and the memory the sparsifier holds.

    python benchmarks/overhead.py
"""

from __future__ import annotations

import copy

import torch
import torchvision
from torch import nn

import rankprune as rp
from _timing import interleave


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
    times = interleave(runs, rounds=25, warmup=3)
    for timing in times.values():
        print(timing)
    base, ours = times.values()
    print(f"ratio, minima: {ours.minimum / base.minimum:.3f}x   medians: {ours.median / base.median:.3f}x")
    bytes_held = sum(site.mask.numel() * site.mask.element_size() for site in sp.sites)
    weights = sum(site.numel for site in sp.sites)
    print(f"memory: {bytes_held / weights:.2f} bytes a weight")


if __name__ == "__main__":
    main()
