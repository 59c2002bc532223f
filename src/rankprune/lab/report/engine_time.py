"""Latency of each layer of a finished run on the sparse engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankprune.engine.compile import compile
from rankprune.lab.bench.latency import read as read_latency
from rankprune.lab.runs.open_model import open_model


def engine_time(folder: Path, repeats: int = 10) -> dict[str, Any]:
    """Measure the latency of each layer on the engine, and the total beside torch.

    Args:
        folder: The run's folder.
        repeats: Number of runs, of which the minimum counts.

    Returns:
        Milliseconds per image and kernel of each layer, and the totals.
    """
    model, example, _ = open_model(folder)
    latency = read_latency(folder)
    fast = compile(model, example, threads="auto" if latency is None else latency.threads)  # as the whole
    layers: list[dict[str, Any]] = [
        {
            "name": layer.name,
            "kernel": layer.kernel,
            "ms": None if layer.seconds is None else round(1e3 * layer.seconds, 5),
            "kept": layer.nonzeros,
        }
        for layer in fast.layers(repeats)
    ]
    return {
        "layers": [layer for layer in layers if layer["ms"] is None or layer["ms"] > 0],
        "threads": fast.threads,
        "torch_ms": 1e3 * fast.report.torch_seconds,
        "engine_ms": 1e3 * fast.report.engine_seconds,
    }
