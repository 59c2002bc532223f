"""Measurements: latency of the engine on sparse ResNet-50s, and the cost of the rank gradient in training."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from rankprune import flops, rank
from rankprune.core.oneshot import prune
from rankprune.engine.backend.cores import default_threads
from rankprune.engine.compile import compile
from rankprune.engine.program import torch_threads
from rankprune.lab.bench.benchmark import ours, pinned, turns
from rankprune.lab.bench.peers import PEERS, Absent
from rankprune.lab.models import create_model

from .growth import growth
from .runs import digest

SPARSITIES = (0.0, 0.8, 0.9, 0.95, 0.98)
# Mask updates in the authors' 100 epochs: at steps 100, 200, ..., 112,700.
UPDATES = 1127
_EVERY, _ROUNDS = 20, 15  # ΔT of the CPU recipes; repetitions of a timing


def runtime(size: int = 224, rounds: int = _ROUNDS) -> dict[str, Any]:
    """Measure one image's latency: the engine at the paper's sparsities, torch and ONNX Runtime with dense weights.

    The engines run in turns, so that all of them see the same state of the machine.

    Args:
        size: Height and width of the image.
        rounds: Repetitions.

    Returns:
        Minimum and median seconds of each engine, and the conditions.
    """
    threads, example = default_threads(), torch.zeros(1, 3, size, size)
    with torch_threads(threads), pinned(threads), tempfile.TemporaryDirectory() as folder:
        engines = {f"{100 * s:g}": ours(compile(masked_resnet50(s), example, threads)) for s in SPARSITIES}
        for peer in ("torch", "onnxruntime"):
            with contextlib.suppress(Absent):
                engines[peer] = PEERS[peer](masked_resnet50(0.0), example, threads, Path(folder), None)
        x = torch.randn(example.shape, generator=torch.Generator().manual_seed(0)).numpy()
        seconds, _ = turns(engines, x, rounds)
    times = {name: {"minimum": min(found), "median": statistics.median(found)} for name, found in seconds.items()}
    model = "torchvision:resnet50, random weights and ERK masks"
    return {"model": model, "size": size, "threads": threads, "rounds": rounds, "times": times}


def masked_resnet50(sparsity: float) -> nn.Module:
    """Create a ResNet-50 with random weights and ERK masks. Latency depends on where the zeros are, not on values.

    Args:
        sparsity: Sparsity of the masks; 0 for a dense model.

    Returns:
        The model in evaluation mode.
    """
    torch.manual_seed(0)
    model = create_model("torchvision:resnet50", 1000).eval()
    if sparsity:
        prune(model, "random", sparsity=sparsity, distribution="erk", seed=0)
    return model


def overhead() -> dict[str, Any]:
    """Measure the rank gradient of one update and an ordinary step; count the FLOPs of the authors' ResNet-50 training.

    Returns:
        Seconds and FLOPs of a small network and of ResNet-50.
    """
    resnet50 = masked_resnet50(0.9)
    macs = flops.count(resnet50, torch.zeros(1, 3, 224, 224)).dense
    torch.manual_seed(0)
    small = create_model("cifar-resnet20").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    step, work = median(lambda: _step(small)), median(lambda: rank.rank_grads(_kernels(small), 0.1))
    return {
        "small": {"model": "cifar-resnet20 at 16 pixels, batches of 128", "step_seconds": step, "rank_seconds": work,
                  "every": _EVERY, "share": work / (_EVERY * step + work)},
        "resnet50": {"rank_seconds": median(lambda: rank.rank_grads(_kernels(resnet50), 0.1), 3),
                     "updates": UPDATES, "svd_flops": flops.svd_flops(resnet50, UPDATES),
                     "gram_flops": gram_flops(resnet50) * UPDATES,
                     "dense_training_flops": flops.dense_training_flops(macs, 100 * 1_281_167)},
    }  # fmt: skip


def gram_flops(model: nn.Module) -> float:
    """Estimate the FLOPs of one update by the closed form, over all convolutions.

    They are those of 10 of 16 blocks of the Gram matrix, of a symmetric eigenproblem with its vectors (9 m³), and of
    projecting on half of the spectrum and back.

    Args:
        model: The model.

    Returns:
        FLOPs.
    """
    sizes = [sorted((w.shape[0], w[0].numel())) for w in _kernels(model)]  # (m, n) with m <= n
    return float(sum(1.25 * m * m * n + 9 * m**3 + 2 * m * m * n for m, n in sizes))


def median(work: Callable[[], Any], rounds: int = _ROUNDS) -> float:
    """Time a function, after one warm-up round.

    Args:
        work: The function.
        rounds: Repetitions.

    Returns:
        Median seconds.
    """
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _step(model: nn.Module) -> None:
    x = torch.randn(128, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    F.cross_entropy(model(x), torch.arange(128) % 10).backward()
    torch.optim.SGD(model.parameters(), 0.01, momentum=0.9).step()
    model.zero_grad()


def _kernels(model: nn.Module) -> list[torch.Tensor]:
    return [m.weight.detach() for m in model.modules() if isinstance(m, nn.Conv2d)]


# Each is called with the folder of CIFAR-10 (or None) and whether the embedded images replace it.
MEASUREMENTS: dict[str, Callable[[str | None, bool], dict[str, Any]]] = {
    "runtime": lambda data, embedded: runtime(),
    "overhead": lambda data, embedded: overhead(),
    "growth": growth,
}


def measurement_key(name: str) -> str:
    """Return the key of a measurement's records.

    Args:
        name: Name of the measurement.

    Returns:
        Twelve hexadecimal digits.
    """
    return digest({"measure": name})
