"""`rankprune.compile`: a torch module in, the same call on the sparse engine out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .build import NoCompiler
from .capture import Captured, capture, need_dense
from .engine import FEWEST, Choices, Engine, thread_count
from .fusion import fuse
from .graph import Graph, Node
from .planfile import write
from .segments import Island, Segment, cut
from .selfcheck import best_variant
from .tuning import Decision
from .tuning import tune as measure


def compile(module: nn.Module, example: Tensor, threads: int | None = None, tune: bool = True) -> Compiled:
    """Compile a module in evaluation mode for inputs of the example's shape and any batch size.

    With `tune`, kernels are measured layer by layer (and remembered); without, they follow from the layers alone. Give
    an example of the batch size you will use: from a few images on, kernels for batches are measured too.
    """
    try:
        variant = best_variant()
    except NoCompiler as error:
        raise ImportError(f"the sparse engine is not built: {error}") from None
    began = time.perf_counter()
    captured = capture(module, example)
    fuse(captured.graph)
    compiled = Compiled(captured, variant, threads, tune, example.shape[0])
    compiled.report = _report(module, compiled, example, time.perf_counter() - began)
    return compiled


@dataclass(frozen=True)
class Layer:
    """One line of a plan; without a time where torch runs it."""

    name: str
    kernel: str
    nonzeros: int | None
    density: float | None
    seconds: float | None
    why: str

    def __str__(self) -> str:
        count = "" if self.nonzeros is None else str(self.nonzeros)
        density = "" if self.density is None else f"{self.density:.4f}"
        spent = "" if self.seconds is None else f"{1e3 * self.seconds:.3f}"
        return f"{self.name:<28} {self.kernel:<26} {count:>12} {density:>8} {spent:>8}  {self.why}"


@dataclass(frozen=True)
class Report:
    """Size and latency of the module before and after."""

    dense_bytes: int
    weight_bytes: int
    torch_seconds: float
    engine_seconds: float
    compile_seconds: float
    islands: tuple[str, ...]

    def __str__(self) -> str:
        ratio = self.torch_seconds / self.engine_seconds
        speed = f"{ratio:.2f} x faster" if ratio > 1.02 else "not faster"
        text = (
            f"weights {self.dense_bytes / 1e6:.1f} MB -> {self.weight_bytes / 1e6:.1f} MB; "
            f"batch 1 {self.torch_seconds * 1e3:.2f} ms -> {self.engine_seconds * 1e3:.2f} ms ({speed} than torch); "
            f"compiled in {self.compile_seconds:.1f} s"
        )
        return text + (f"; run by torch: {', '.join(self.islands)}" if self.islands else "")


class Compiled:
    """Takes and returns what the module does. Calls from several threads at once are safe."""

    report: Report

    def __init__(self, captured: Captured, variant: str, threads: int | None, tune: bool, batch: int = 1) -> None:
        self._spec = captured.spec
        self._graph = captured.graph
        self.variant = variant
        self.threads = thread_count(threads)
        self.tuned = tune
        self._steps = cut(captured.graph, captured.islands)
        self._engines: dict[int, Engine] = {}
        self._decisions: dict[int, dict[bool, dict[int, Decision]]] = {}
        for i, step in enumerate(self._steps):
            if isinstance(step, Segment):
                self._decisions[i] = self._decide(step.graph, batch) if tune else {False: {}, True: {}}
                choices: Choices = {
                    images: {n: d.choice for n, d in found.items()} for images, found in self._decisions[i].items()
                }
                self._engines[i] = Engine(step.graph, self.threads, choices, variant)
                if tune and batch >= FEWEST:
                    self._engines[i].choose_layout(batch)

    def _decide(self, graph: Graph, batch: int) -> dict[bool, dict[int, Decision]]:
        eight = measure(graph, True, self.variant, self.threads) if batch >= FEWEST else {}
        return {False: measure(graph, False, self.variant, self.threads), True: eight}

    def __call__(self, *inputs: Tensor) -> Any:
        values: dict[int, np.ndarray] = {}
        if len(inputs) != len(self._graph.inputs):
            raise ValueError(f"the network takes {len(self._graph.inputs)} inputs, not {len(inputs)}")
        for value, tensor in zip(self._graph.inputs, inputs):
            need_dense(tensor, "the engine takes")
            values[value] = tensor.detach().contiguous().numpy()
        for i, step in enumerate(self._steps):
            if isinstance(step, Segment):
                results = self._engines[i]([values[v] for v in step.inputs])
                values.update(zip(step.outputs, results))
            else:
                values[step.output] = step.run(values)
        outputs = [torch.from_numpy(values[v]) for v in self._graph.outputs]
        return pytree.tree_unflatten(outputs, self._spec)

    @property
    def islands(self) -> tuple[str, ...]:
        """Operators that torch runs."""
        return tuple(step.name for step in self._steps if isinstance(step, Island))

    def weight_bytes(self) -> int:
        return sum(engine.weight_bytes() for engine in self._engines.values())

    def save(self, path: str | Path) -> int:
        """Write the network for `rankprune.engine.runtime.load`, which needs no torch; returns the bytes written."""
        if self.islands:
            names = ", ".join(sorted(set(self.islands)))
            raise ValueError(f"a plan cannot be saved with operators that only torch knows: {names}")
        engine = self._engines[0]
        return write(path, engine.graph, engine.choices, engine.eight)

    def layers(self, repeats: int = 5) -> Iterator[Layer]:
        """Each layer of the program, timed now for one image."""
        for i, step in enumerate(self._steps):
            if isinstance(step, Island):
                yield Layer(step.name, "torch", None, None, None, "an operator the engine does not know")
                continue
            engine = self._engines[i]
            blank = [np.zeros((1, *step.graph.shapes[v]), np.float32) for v in step.graph.inputs]
            seconds, of_node = engine.profile(blank, repeats=repeats)
            made = engine.lowered(False)
            assert made is not None
            for index, node in enumerate(step.graph.nodes):
                spent = float(sum(s for s, n in zip(seconds, of_node) if n == index))
                yield _layer(node, str(made.choices.get(index, "")), spent, self._decisions[i][False].get(index))

    def plan(self, repeats: int = 5) -> str:
        """Each layer with its kernel, non-zeros, time for one image, and why."""
        lines = [f"{'layer':<28} {'kernel':<26} {'non-zeros':>12} {'density':>8} {'ms':>8}  why"]
        lines += [str(layer) for layer in self.layers(repeats)]
        if self.tuned and not self._sparse_wins():
            lines.append("no layer is faster sparse than dense: this network is too dense to gain from the engine")
        return "\n".join(lines)

    def _sparse_wins(self) -> bool:
        return any(not d.choice.dense for found in self._decisions.values() for d in found[False].values())


def _layer(node: Node, kernel: str, spent: float, decision: Decision | None) -> Layer:
    if node.weight is None:
        return Layer(f"{node.name} {node.op}".strip(), kernel, None, None, spent, "")
    density = node.weight.nonzeros / node.weight.size
    why = decision.why if decision else "not tuned"
    return Layer(node.name or node.op, kernel, node.weight.nonzeros, density, spent, why)


def _report(module: nn.Module, compiled: Compiled, example: Tensor, spent: float) -> Report:
    one = example[:1].contiguous()
    best = {"torch": float("inf"), "engine": float("inf")}
    with torch.inference_mode():
        for turn in range(4):
            for name, call in (("torch", module), ("engine", compiled)):
                start = time.perf_counter()
                call(one)
                if turn:  # the first turn warms up
                    best[name] = min(best[name], time.perf_counter() - start)
    dense = sum(p.numel() * p.element_size() for p in module.parameters())
    return Report(dense, compiled.weight_bytes(), best["torch"], best["engine"], spent, compiled.islands)
