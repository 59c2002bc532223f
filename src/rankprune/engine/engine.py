"""Runs a graph on NumPy arrays: one image at a time, or eight."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence

import numpy as np

from .graph import Graph, Unsupported
from .lowering import Lowered, lower
from .packing import Choice
from .selfcheck import best_variant

Choices = dict[bool, dict[int, Choice]]  # by layout (eight images at once?), then by node
FEWEST = 5  # images that are worth a group of eight


def default_threads() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Engine:
    """A graph ready to run. Calls from several threads at once are safe."""

    def __init__(
        self, graph: Graph, threads: int | None = None, choices: Choices | None = None, variant: str | None = None
    ) -> None:
        self.graph = graph
        self.threads = default_threads() if threads is None else threads
        if self.threads < 1:
            raise ValueError(f"threads={threads} must be at least 1")
        self.variant = variant or best_variant()
        self.choices: Choices = choices if choices is not None else {False: {}, True: {}}
        self._lowered: dict[bool, Lowered | None] = {}
        self._lock = threading.Lock()
        made = self.lowered(False)
        assert made is not None
        for index, packed in made.packed.items():
            self.graph.nodes[index].weight = packed

    def lowered(self, images: bool) -> Lowered | None:
        """The program of a layout, made when first needed; None where eight at once is not possible."""
        with self._lock:
            if images not in self._lowered:
                try:
                    made = lower(self.graph, images, self.variant, self.threads, self.choices.get(images))
                except Unsupported:
                    if not images:
                        raise
                    made = None
                self._lowered[images] = made
            return self._lowered[images]

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Float32 arrays with the batch in front, in and out."""
        batch = self._check(inputs)
        arrays = [np.ascontiguousarray(x, np.float32) for x in inputs]
        results = [np.empty((batch, *self.graph.shapes[v]), np.float32) for v in self.graph.outputs]
        done = 0
        while done < batch:
            eight = self.lowered(True) if batch - done >= FEWEST else None
            program = eight or self.lowered(False)
            assert program is not None
            count = min(program.images, batch - done)
            self._group(program, arrays, results, done, count)
            done += count
        return results

    def _group(
        self, made: Lowered, inputs: list[np.ndarray], outputs: list[np.ndarray], first: int, count: int,
        seconds: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Run images first .. first+count-1; a group of eight may be partly empty."""
        ins = [(x.ctypes.data + 4 * first * n, at, count * n) for x, (at, n) in zip(inputs, made.inputs)]
        outs = [(y.ctypes.data + 4 * first * n, at, count * n) for y, (at, n) in zip(outputs, made.outputs)]
        made.program.run(ins, outs, seconds)

    def profile(
        self, inputs: Sequence[np.ndarray], images: bool = False, repeats: int = 10
    ) -> tuple[np.ndarray, list[int]]:
        """Least seconds of each kernel call, and the node each serves."""
        made = self.lowered(images)
        if made is None:
            raise Unsupported("this network runs one image at a time")
        arrays = [np.ascontiguousarray(np.resize(x, (made.images, *x.shape[1:])), np.float32) for x in inputs]
        results = [np.empty((made.images, *self.graph.shapes[v]), np.float32) for v in self.graph.outputs]
        best = np.full(made.program.size, np.inf)
        for _ in range(repeats):
            seconds = np.zeros(made.program.size)
            self._group(made, arrays, results, 0, made.images, seconds)
            np.minimum(best, seconds, out=best)
        return best, made.of_node

    def weight_bytes(self) -> int:
        """Of all constants that the programs made so far and the graph hold, each counted once."""
        arrays = {}
        for node in self.graph.nodes:
            held = list(node.arrays.values())
            if node.weight is not None:
                held += node.weight.arrays()
            arrays.update({a.ctypes.data: a.nbytes for a in held})
        for made in self._lowered.values():
            if made is not None:
                arrays.update(made.program.arrays())
        return sum(arrays.values())

    def _check(self, inputs: Sequence[np.ndarray]) -> int:
        shapes = [self.graph.shapes[v] for v in self.graph.inputs]
        if len(inputs) != len(shapes):
            raise ValueError(f"the network takes {len(shapes)} inputs, not {len(inputs)}")
        for x, shape in zip(inputs, shapes):
            if tuple(x.shape[1:]) != shape or x.ndim != len(shape) + 1:
                raise ValueError(
                    f"the network was compiled for inputs (batch, {', '.join(map(str, shape))}), not {x.shape}"
                )
            if x.shape[0] != inputs[0].shape[0] or not math.prod(x.shape):
                raise ValueError(f"an input of shape {x.shape} has no images or not as many as the others")
        return int(inputs[0].shape[0])
