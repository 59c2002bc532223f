"""Rank gradients of all convolutions of ResNet-50 at 90 % zeros: the closed form against SVD and autograd.

`python benchmarks/rank.py` prints both times from one interleaved run, their ratio, how far either is from the gradient
in float64, and what the remaining time is spent on. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse

import torch
import torchvision
from torch import Tensor

from _timing import interleave
from rankprune import rank


def pruned_convolutions(sparsity: float, seed: int = 0) -> list[Tensor]:
    """Weights of torchvision's ResNet-50, the smallest of each layer set to zero."""
    torch.manual_seed(seed)
    out = []
    for module in torchvision.models.resnet50(weights=None).modules():
        if isinstance(module, torch.nn.Conv2d):
            w = module.weight.detach()
            threshold = w.abs().flatten().kthvalue(max(1, round(sparsity * w.numel()))).values
            out.append(w * (w.abs() > threshold))
    return out


def by_autograd(W: Tensor, delta: float) -> Tensor:
    """The rank loss as published: SVD of the detached matrix, k by its tail energy, gradient by autograd."""
    leaf = W.clone().requires_grad_()
    bar = leaf.flatten(1) / leaf.norm()
    U, s, Vh = torch.linalg.svd(bar.detach(), full_matrices=False)
    k = len(s) - 1 - int((s.square().flip(0).cumsum(0) - delta).abs().argmin())
    loss = -(bar - (U[:, :k] * s[:k]) @ Vh[:k]).square().sum()
    return torch.autograd.grad(loss, leaf)[0]


def shares(weights: list[Tensor], delta: float) -> dict[str, float]:
    """Share of operator time by part, from the profiler on one thread (its events are then sequential)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as log:
            rank.rank_grads(weights, delta)
    finally:
        torch.set_num_threads(threads)
    own = {e.key: e.self_cpu_time_total for e in log.key_averages()}
    part = {"gram": ["aten::mm"], "eigh": ["aten::_linalg_eigh"], "projection": ["aten::bmm", "aten::baddbmm_"]}
    total = sum(own.values())
    out = {name: sum(own.get(key, 0.0) for key in keys) / total for name, keys in part.items()}
    return {**out, "other": 1 - sum(out.values())}


def worst(got: list[Tensor], want: list[Tensor]) -> float:
    """Largest relative error of a layer."""
    return max(float((a - b).norm() / b.norm()) for a, b in zip(got, want))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--delta", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    weights = pruned_convolutions(args.sparsity)

    times = interleave(
        {
            "closed form, rank_grads": lambda: rank.rank_grads(weights, args.delta),
            "torch.linalg.svd + autograd": lambda: [by_autograd(w, args.delta) for w in weights],
        },
        rounds=args.rounds,
    )
    ours, theirs = times.values()
    print(f"{len(weights)} convolutions of ResNet-50, {args.sparsity:.0%} zeros, float32, {args.threads} threads")
    print(ours, theirs, sep="\n")
    print(f"ratio: {theirs.minimum / ours.minimum:.1f} of minima, {theirs.median / ours.median:.1f} of medians")

    got, want = rank.rank_grads(weights, args.delta), [by_autograd(w, args.delta) for w in weights]
    exact = [by_autograd(w.double(), args.delta) for w in weights]
    print(f"largest relative difference of a layer, ours to theirs: {worst(got, want):.1e}")
    print(f"to float64 autograd: ours {worst(got, exact):.1e}, theirs {worst(want, exact):.1e}")
    for name, share in shares(weights, args.delta).items():
        print(f"  {name:<12}{share:6.1%}")


if __name__ == "__main__":
    main()
