"""The engine against torch, ONNX Runtime and DeepSparse: ResNet-50 at 224 with ERK masks, and how time grows.

python benchmarks/engine.py --deepsparse ENVIRONMENT [--model resnet50] [--batch 1 16] [--sparsity 0.8 0.9 0.95 0.98]
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from rankprune import prune
from rankprune.engine import native
from rankprune.engine.benchmark import benchmark
from rankprune.engine.engine import default_threads
from rankprune.engine.selfcheck import best_variant
from rankprune.flops import count
from rankprune.models import create_model


def masked(name: str, sparsity: float, size: int) -> nn.Module:
    """Random weights and ERK masks: time depends on where the non-zeros are, not on what they are."""
    torch.manual_seed(0)
    model = create_model(name, 1000 if size == 224 else 10).eval()
    if sparsity:
        prune(model, "random", sparsity=sparsity, distribution="erk", seed=0)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="torchvision:resnet50")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.8, 0.9, 0.95, 0.98])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--against", default="torch,onnxruntime,deepsparse")
    parser.add_argument("--deepsparse", metavar="ENVIRONMENT", help="a virtual environment with deepsparse==1.8.0")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    peak = native.peak(best_variant(), args.threads)
    print(f"{best_variant()}, {args.threads} threads, multiply-add peak {peak:.0f} GFLOP/s")
    for batch in args.batch:
        for sparsity in args.sparsity:
            model = masked(args.model, sparsity, args.image_size)
            x = torch.zeros(batch, 3, args.image_size, args.image_size)
            found = benchmark(model, x, args.against.split(","), args.threads, args.deepsparse, args.rounds)
            work = 2 * count(model, x[:1]).sparse * batch / 1e9
            speed = work / found.rows[0].minimum
            share = f"{work:.2f} GFLOP of non-zeros, {speed:.0f} GFLOP/s, {speed / peak:.0%} of peak"
            print(f"\n{args.model} at {sparsity:.0%}: {share}")
            print(found, flush=True)


if __name__ == "__main__":
    main()
