"""How much engines slow down while other processes keep all cores busy."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
from torch import nn

from rankprune import compile
from rankprune.engine.backend.cores import default_threads
from rankprune.engine.program import torch_threads
from rankprune.lab.bench.benchmark import ours, turns
from rankprune.lab.bench.peers import PEERS

PERIODS = 4  # without and with neighbours by turns


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Run processes that each keep a core busy."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.5)  # until they have begun
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def busy(title: str, model: nn.Module, shape: tuple[int, ...], threads: int, rounds: int) -> None:
    """Time rankprune and ONNX Runtime by turns, without and with as many busy processes as there are cores.

    Args:
        title: What to print about the model.
        model: The model.
        shape: Shape of the input.
        threads: Threads of each engine.
        rounds: Timings per engine and period.
    """
    cores = default_threads()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    alone: dict[str, list[float]] = {}
    beside: dict[str, list[float]] = {}
    with torch_threads(threads), tempfile.TemporaryDirectory() as folder:
        engines = {
            "rankprune": ours(compile(model, x, threads)),
            "onnxruntime": PEERS["onnxruntime"](model, x, threads, Path(folder), None),
        }
        for _ in range(PERIODS):
            for times, others in ((alone, 0), (beside, cores)):
                with neighbours(others):
                    for name, seconds in turns(engines, x.numpy(), rounds)[0].items():
                        times.setdefault(name, []).extend(seconds)
    print(f"\n{title}: batch {shape[0]}, {threads} threads, {cores} busy processes on {cores} cores")
    print(f"{PERIODS} periods of {rounds} interleaved rounds without and with them")
    heads = f"{'alone, median ms':>17} {'busy, median ms':>16} {'10-90 %, ms':>15} {'slower':>7} {'by mean':>8}"
    print(f"{'engine':<12} {heads}")
    slower = {by: {name: by(beside[name]) / by(alone[name]) for name in engines} for by in (median, mean)}
    for name in engines:
        low, high = np.percentile(beside[name], [10, 90]) * 1e3
        medians = f"{median(alone[name]) * 1e3:>17.2f} {median(beside[name]) * 1e3:>16.2f}"
        spread = f"{low:.3g} - {high:.3g}"
        print(f"{name:<12} {medians} {spread:>15} {slower[median][name]:>7.2f} {slower[mean][name]:>8.2f}")
    ratios = (f"{of['rankprune'] / of['onnxruntime']:.2f}" for of in slower.values())
    print("slowdown of rankprune / slowdown of onnxruntime: {} by medians, {} by means".format(*ratios), flush=True)
