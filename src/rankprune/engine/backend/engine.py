"""Runs a graph on NumPy arrays: one image at a time or eight, by all threads together or each thread its own images."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence

import numpy as np

from rankprune.engine.graph.graph import Graph, Unsupported
from rankprune.engine.graph.limits import Limits

from .lowering import Lowered, lower
from .native import kernel_constant
from .packing import KernelPlan, Packs
from .selfcheck import best_variant

MIN_IMAGES_FOR_EIGHT = 5  # fewer images run one by one
CACHE_BYTES = 4 << 20  # values of eight images up to this size stay in the cache


def default_threads() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_count(threads: int | None) -> int:
    """As asked for, or all the cores; more would wait for one another in loops while holding each other's core."""
    cores = min(default_threads(), kernel_constant("kMostThreads"))
    if threads is None:
        return cores
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ValueError(f"threads={threads!r} must be a whole number from 1 to {cores}, the cores of this process")
    if threads > cores:
        raise ValueError(f"threads={threads} is more than the {cores} cores this process may use: ask for fewer")
    return threads


class Engine:
    """A graph ready to run. Calls from several threads at once are safe."""

    def __init__(
        self, graph: Graph, threads: int | None = None, kernels: KernelPlan | None = None, variant: str | None = None,
        eight: bool | None = None, limits: Limits | None = None,
    ) -> None:  # fmt: skip
        """`eight`: whether batches run eight images at once; None: if their values stay near the cores.

        `limits`: of memory and work; a program for eight images that exceeds them is not used.
        """
        self.graph = graph
        self.threads = thread_count(threads)
        self.variant = variant or best_variant()
        self.kernels = kernels if kernels is not None else KernelPlan({}, {})
        largest = max(math.prod(shape) for shape in graph.shapes)
        self.eight = 8 * 4 * largest <= CACHE_BYTES if eight is None else eight
        self._packs = Packs()
        self._limits = limits
        self._lowered: dict[tuple[bool, int], Lowered | None] = {}
        self._lock = threading.Lock()
        made = self.lowered(False)
        assert made is not None
        self.graph = graph.with_weights(made.packed)

    def lowered(self, eight: bool, threads: int | None = None) -> Lowered | None:
        """The program of a layout, made when first needed; None where eight at once is not possible."""
        key = eight, threads or self.threads
        with self._lock:
            if key not in self._lowered:
                # Without measured choices, other programs follow the first one's: they share its lists.
                choices = self.kernels.of(eight)
                first = self._lowered.get((eight, self.threads))
                if first is not None:
                    choices = {**first.choices, **choices}
                try:
                    made = lower(self.graph, eight, self.variant, key[1], choices, self._packs, self._limits)
                except Unsupported:
                    if not eight:
                        raise
                    made = None
                self._lowered[key] = made
            return self._lowered[key]

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Float32 arrays with the batch in front, in and out."""
        batch = self._check(inputs)
        arrays = [np.ascontiguousarray(x, np.float32) for x in inputs]
        results = [np.empty((batch, *self.graph.shapes[v]), np.float32) for v in self.graph.outputs]
        done = 0
        while done < batch:
            eight = self.eight and batch - done >= MIN_IMAGES_FOR_EIGHT and self.lowered(True) is not None
            size = 8 if eight else 1
            # As many groups as keep every thread busy to the end; what is left over is shared within a group.
            groups = (batch - done) // size // self.threads * self.threads if self.threads > 1 else 1
            program = self.lowered(eight, 1 if groups > 1 else None)
            assert program is not None
            count = size * groups if groups > 1 else min(size, batch - done)
            self._group(program, arrays, results, done, count, groups)
            done += count
        return results

    def _group(
        self, made: Lowered, inputs: list[np.ndarray], outputs: list[np.ndarray], first: int, count: int,
        groups: int = 1, seconds: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Run images first .. first+count-1 in that many groups; a single group of eight may be partly empty."""
        each = count // groups if groups > 1 else count
        ins = [(x.ctypes.data + 4 * first * n, at, each * n) for x, (at, n) in zip(inputs, made.inputs)]
        outs = [(y.ctypes.data + 4 * first * n, at, each * n) for y, (at, n) in zip(outputs, made.outputs)]
        if groups > 1:
            made.program.run_groups(ins, outs, groups, self.threads)
        else:
            made.program.run(ins, outs, seconds)

    def profile(
        self, inputs: Sequence[np.ndarray], eight: bool = False, repeats: int = 10
    ) -> tuple[np.ndarray, list[int]]:
        """Least seconds of each kernel call, and the node each serves."""
        made = self.lowered(eight)
        if made is None:
            raise Unsupported("this network runs one image at a time")
        arrays = [np.ascontiguousarray(np.resize(x, (made.batch, *x.shape[1:])), np.float32) for x in inputs]
        results = [np.empty((made.batch, *self.graph.shapes[v]), np.float32) for v in self.graph.outputs]
        best = np.full(made.program.size, np.inf)
        for _ in range(repeats):
            seconds = np.zeros(made.program.size)
            self._group(made, arrays, results, 0, made.batch, 1, seconds)
            np.minimum(best, seconds, out=best)
        return best, made.of_node

    def blank(self, batch: int = 1) -> list[np.ndarray]:
        """Inputs of zeros."""
        return [np.zeros((batch, *self.graph.shapes[v]), np.float32) for v in self.graph.inputs]

    def choose_layout(self, batch: int, tries: int = 3) -> None:
        """Measure whether a batch runs faster eight images at once, and keep to that."""
        inputs = self.blank(batch)
        best = {False: math.inf, True: math.inf}
        for turn in range(1 + tries):
            for eight in best:
                self.eight = eight
                start = time.perf_counter()
                self(inputs)
                if turn:  # the first turn makes the programs
                    best[eight] = min(best[eight], time.perf_counter() - start)
        self.eight = best[True] < 0.95 * best[False]

    def weight_bytes(self) -> int:
        """Of all constants that the programs made so far and the graph hold, each counted once."""
        arrays = {}
        for node in self.graph.nodes:
            held = [*node.arrays.values(), *(node.weight.arrays() if node.weight is not None else [])]
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
            if x.dtype.kind not in "fiub":
                raise ValueError(f"the network takes numbers as float32, not {x.dtype}")
            if tuple(x.shape[1:]) != shape or x.ndim != len(shape) + 1:
                wanted = ", ".join(map(str, shape))
                raise ValueError(f"the network was compiled for inputs (batch, {wanted}), not {x.shape}")
            if x.shape[0] != inputs[0].shape[0] or not math.prod(x.shape):
                raise ValueError(f"an input of shape {x.shape} has no images or not as many as the others")
        return int(inputs[0].shape[0])
