"""CPU and wall seconds of each step of `rankprune.compile`: python benchmarks/compile.py [--model NAME] [--runs N]

Every compilation runs in a fresh process: the first without cached kernel choices, the others with them. CPU seconds
count all threads, and depend less than wall seconds on what else the machine is doing. Beside other load use
`--threads 1`, because threads of torch that wait for each other keep spinning.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

Seconds = tuple[float, float]  # CPU, wall


def now() -> Seconds:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, time.perf_counter()


class Steps(io.StringIO):
    """A terminal that notes when `compile` announces each of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[str, Seconds]] = [("checking the kernels", now())]

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        _, _, step = text.partition("rankprune compile: ")
        if step:
            self.begun.append(("tuning" if step.startswith("tuning layer") else step, now()))
        return len(text)

    def seconds(self) -> dict[str, Seconds]:
        """Return the seconds of each step; the tuning of all layers is one step."""
        total: dict[str, Seconds] = {}
        ends = [start for _, start in self.begun[1:]] + [now()]
        for (step, start), end in zip(self.begun, ends, strict=True):
            cpu, wall = total.get(step, (0.0, 0.0))
            total[step] = cpu + end[0] - start[0], wall + end[1] - start[1]
        return total


def child(name: str, sparsity: float, size: int, threads: str) -> None:
    """Compile once and print the seconds of each step as JSON."""
    import torch

    import rankprune as rp
    from rankprune.lab.models import create_model

    torch.manual_seed(0)
    model = create_model(name, 1000 if size == 224 else 10).eval()
    if sparsity:
        rp.prune(model, "random", sparsity=sparsity, distribution="erk", seed=0)
    with contextlib.redirect_stderr(Steps()) as steps:
        rp.compile(model, torch.zeros(1, 3, size, size), threads="auto" if threads == "auto" else int(threads))
        seconds = steps.seconds()
    print(json.dumps(seconds))


def show(title: str, seconds: dict[str, Seconds]) -> None:
    cpu, wall = (sum(column) for column in zip(*seconds.values(), strict=True))
    print(f"\n{title:<34} CPU {cpu:6.2f} s   wall {wall:6.2f} s")
    for step, (cpu, wall) in seconds.items():
        print(f"  {step:<32} CPU {cpu:6.2f} s   wall {wall:6.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="torchvision:resnet50")
    parser.add_argument("--sparsity", type=float, default=0.95)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--threads", default="auto")
    parser.add_argument("--runs", type=int, default=3, help="compilations with cached choices")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.model, args.sparsity, args.size, args.threads)

    from rankprune.engine.backend.native import cache_folder
    from rankprune.engine.backend.selfcheck import best_variant

    best_variant()  # builds the kernels if necessary, which is not part of a compilation
    print(f"{args.model} at {args.sparsity:.0%} sparsity, {best_variant()}, threads={args.threads}")
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        if cache_folder().is_dir():
            (cache / "kernels").symlink_to(cache_folder() / "kernels")
        environment = {**os.environ, "RANKPRUNE_CACHE": folder}
        for run in range(1 + args.runs):
            command = [sys.executable, __file__, "--child", *sys.argv[1:]]
            out = subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout
            show("choices measured" if not run else "choices from the cache", json.loads(out.splitlines()[-1]))


if __name__ == "__main__":
    main()
