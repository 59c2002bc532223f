"""How long the sparse engine spends in each layer of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rankprune.engine.compiled import compile
from rankprune.engine.segments import Island
from rankprune.training.weights import open_model


def engine_time(folder: Path, repeats: int = 10) -> dict[str, Any]:
    """Least milliseconds of each layer for one image, its kernel, and the whole beside torch; measured now."""
    model, example = open_model(folder)
    fast = compile(model, example)
    layers: list[dict[str, Any]] = []
    for i, step in enumerate(fast._steps):
        if isinstance(step, Island):
            layers.append({"name": step.name, "kernel": "torch", "ms": None, "kept": None})
            continue
        engine = fast._engines[i]
        blank = [np.zeros((1, *step.graph.shapes[v]), np.float32) for v in step.graph.inputs]
        seconds, of_node = engine.profile(blank, repeats=repeats)
        made = engine.lowered(False)
        for index, node in enumerate(step.graph.nodes):
            spent = 1e3 * sum(float(s) for s, n in zip(seconds, of_node) if n == index)
            kernel = str(made.choices.get(index, "")) if made is not None else ""
            kept = None if node.weight is None else int(node.weight.nonzeros)
            layers.append({"name": node.name or node.op, "kernel": kernel, "ms": round(spent, 5), "kept": kept})
    return {
        "layers": [layer for layer in layers if layer["ms"] is None or layer["ms"] > 0],
        "threads": fast.threads,
        "torch_ms": 1e3 * fast.report.torch_seconds,
        "engine_ms": 1e3 * fast.report.engine_seconds,
    }
