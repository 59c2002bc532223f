"""The engine beside torch, ONNX Runtime and DeepSparse, in turns; with the roofline, and how time grows.

    python benchmarks/engine.py SUITE [--deepsparse ENVIRONMENT]     resnet50, resnet50-batch, deit-s, cifar, ...
    python benchmarks/engine.py busy                                 slowdown while other processes keep the cores busy
    python benchmarks/engine.py trained --run FOLDER                 a trained network beside its twin with ERK masks

ENVIRONMENT is a virtual environment with deepsparse==1.8.0.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from _busy import busy
from rankprune import prune
from rankprune.engine.backend import native
from rankprune.engine.backend.cores import default_threads
from rankprune.engine.backend.selfcheck import best_variant
from rankprune.engine.backend.tuning import cpu_model
from rankprune.flops import count
from rankprune.lab.bench.benchmark import benchmark
from rankprune.lab.models import create_model
from rankprune.lab.runs.open_model import open_model

ENGINES = ("torch", "onnxruntime", "deepsparse")


@dataclass(frozen=True)
class Suite:
    models: tuple[str, ...]
    size: int
    sparsities: tuple[float, ...]
    batches: tuple[int, ...] = (1,)
    against: tuple[str, ...] = ENGINES


RESNET = ("torchvision:resnet50",)
DENSE = ("torch", "onnxruntime", "openvino", "onnxruntime-int8", "openvino-int8")
SUITES = {
    "resnet50": Suite(RESNET, 224, (0.8, 0.9, 0.95, 0.98)),
    "resnet50-batch": Suite(RESNET, 224, (0.8, 0.9, 0.95, 0.98), (16,), ("onnxruntime", "deepsparse")),
    "deit-s": Suite(("timm:deit_small_patch16_224",), 224, (0.8, 0.9, 0.95)),
    "cifar": Suite(("cifar-resnet32x2", "cifar-vgg19"), 32, (0.98,)),
    "dense": Suite(RESNET, 224, (0.0,), (1,), DENSE),
    "growth": Suite(RESNET, 224, (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99), (1,), ("onnxruntime",)),
    "growth-batch": Suite(RESNET, 224, (0.95,), (1, 2, 4, 8, 16, 32), ("onnxruntime",)),
}
BUSY = (("cifar-resnet20", 32, 0.95), ("torchvision:resnet50", 224, 0.95))


def masked(name: str, sparsity: float, size: int) -> nn.Module:
    """Random weights and ERK masks: time depends on where the non-zeros are, not on what they are."""
    torch.manual_seed(0)
    model = create_model(name, 1000 if size == 224 else 10).eval()
    if sparsity:
        prune(model, "random", sparsity=sparsity, distribution="erk", seed=0)
    return model


class Bench:
    def __init__(self, threads: int, rounds: int, deepsparse: str | None) -> None:
        self.threads, self.rounds, self.deepsparse = threads, rounds, deepsparse
        self.peak = 0.0
        print(f"{best_variant()}, {threads} threads, {cpu_model()}")

    def show(self, title: str, model: nn.Module, shape: tuple[int, ...], against: tuple[str, ...]) -> None:
        found = benchmark(model, torch.zeros(shape), against, self.threads, self.deepsparse, self.rounds)
        work = 2 * count(model, torch.zeros(1, *shape[1:])).sparse * shape[0] / 1e9
        speed = work / found.rows[0].minimum
        self.peak = max(self.peak, native.peak(best_variant(), self.threads))  # a disturbed measurement is too low
        share = f"{speed / self.peak:.0%} of the multiply-add peak of {self.peak:.0f}"
        away = 1e9 * native.round_trip() if default_threads() > 1 else 0.0
        caches = "one L3" if away < 250 else "two L3s"
        caches = f"; a cache line goes to the other core and back in {away:.0f} ns ({caches})"
        share += caches if self.threads > 1 else ""
        print(f"\n{title}: {work:.2f} GFLOP of non-zeros, {speed:.0f} GFLOP/s, {share}")
        print(found, flush=True)


def trained(bench: Bench, run: Path) -> None:
    """Masks as training left them, and an ERK twin with as many weights in all."""
    model, example, _ = open_model(run, None, None)
    twin = copy.deepcopy(model)
    weights = [p for p in twin.parameters() if p.ndim > 1]
    sparsity = 1 - sum(int(p.count_nonzero()) for p in weights) / sum(p.numel() for p in weights)
    for weight in weights:
        nn.init.normal_(weight, std=0.05)
    prune(twin, "random", sparsity=sparsity, distribution="erk", seed=0)
    for kind, net in (("trained", model), ("ERK twin", twin)):
        bench.show(f"{run.name}, {kind} at {sparsity:.1%}", net.eval(), tuple(example.shape), ("torch", "onnxruntime"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=[*SUITES, "busy", "trained"])
    parser.add_argument("--run", type=Path, metavar="FOLDER")
    parser.add_argument("--deepsparse", metavar="ENVIRONMENT")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--sparsity", type=float, nargs="+", help="only these of the suite's")
    parser.add_argument("--against", nargs="+", metavar="ENGINE", help="only these of the suite's")
    parser.add_argument("--rounds", type=int, default=25)
    args = parser.parse_args()
    if args.suite == "trained" and args.run is None:
        parser.error("trained needs --run FOLDER, the folder of a finished run")
    bench = Bench(args.threads, args.rounds, args.deepsparse)
    if args.suite == "trained":
        return trained(bench, args.run)
    if args.suite == "busy":
        for name, size, sparsity in BUSY:
            model = masked(name, sparsity, size)
            busy(f"{name} at {sparsity:.0%}", model, (1, 3, size, size), args.threads, args.rounds)
        return None
    suite = SUITES[args.suite]
    for name in suite.models:
        for batch in suite.batches:
            for sparsity in args.sparsity or suite.sparsities:
                model = masked(name, sparsity, suite.size)
                shape = (batch, 3, suite.size, suite.size)
                bench.show(f"{name} at {sparsity:.0%}", model, shape, tuple(args.against or suite.against))


if __name__ == "__main__":
    main()
