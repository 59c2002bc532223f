"""Runs a graph on NumPy arrays: one image at a time or eight, by all threads together or each thread its own images."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

import numpy as np

from rankprune.engine.graph.graph import Graph, Unsupported
from rankprune.engine.graph.limits import Limits

from .choice import KernelPlan
from .cores import default_threads
from .lowering import Lowered, lower
from .native import kernel_constant
from .packs import Packs
from .selfcheck import best_variant

MIN_IMAGES_FOR_EIGHT = 5  # fewer images run one at a time
CACHE_BYTES = 4 << 20  # by default, eight images run at once if their largest value fits in this
TOGETHER = 4  # images whose last layers run at once, in a batch that has as many for each core
MARGIN = 0.98  # of the time of single images, which a layout that holds the weights once more may take at most


def thread_count(threads: int | None) -> int:
    """Check a number of threads.

    Args:
        threads: The number; None for all cores that this process may use.

    Returns:
        The number. More threads than cores are refused, because waiting threads spin on each other's cores.

    Raises:
        ValueError: The number is not between 1 and the number of cores.
    """
    cores = min(default_threads(), kernel_constant("kMostThreads"))
    if threads is None:
        return cores
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ValueError(f"threads={threads!r} must be a whole number from 1 to {cores}, the cores of this process")
    if threads > cores:
        raise ValueError(f"threads={threads} is more than the {cores} cores this process may use: ask for fewer")
    return threads


class Engine:
    """A graph that is ready to run. It may be called from several threads at once.

    Args:
        graph: The network.
        threads: Number of threads; by default the cores that this process may use.
        kernels: The kernel of each layer; layers without one get a default.
        variant: The instruction set; by default the best one of this CPU.
        eight: Batches run eight images at once; by default if their values fit in the cache. If they do not, the last
            layers run for several images at once where that can save time (`stacked.py`).
        limits: Limits of memory and work; a program for several images that exceeds them is not used.

    Raises:
        Unsupported: The kernels cannot run the graph.
        TooLarge: The graph exceeds the limits.
    """

    def __init__(
        self, graph: Graph, threads: int | None = None, kernels: KernelPlan | None = None, variant: str | None = None,
        eight: bool | None = None, limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self.graph = graph
        self.threads = thread_count(threads)
        self.variant = variant or best_variant()
        self.kernels = kernels if kernels is not None else KernelPlan({}, {})
        largest = max(math.prod(shape) for shape in graph.shapes)
        self.eight = 8 * 4 * largest <= CACHE_BYTES if eight is None else eight
        self.images = 1 if self.eight else TOGETHER
        self._packs = Packs()
        self._limits = limits
        self._lowered: dict[tuple[bool, int, int], Lowered | None] = {}
        self._lock = threading.Lock()
        first = self.lowered(False)
        assert first is not None
        self.graph = graph.with_weights(first.packed)

    def lowered(self, eight: bool, threads: int | None = None, images: int = 1) -> Lowered | None:
        """Return the program of a layout, lowered when first needed.

        Args:
            eight: Eight images at once, or one.
            threads: Number of threads; by default the engine's.
            images: Images whose last layers run at once.

        Returns:
            The program; None if the graph cannot run several images at once in this way.
        """
        key = eight, images, threads or self.threads
        with self._lock:
            if key not in self._lowered:
                # Programs for other numbers of threads use the first one's kernels, to share its packed weights.
                choices = self.kernels.of(eight)
                first = self._lowered.get((eight, images, self.threads))
                if first is not None:
                    choices = {**first.choices, **choices}
                try:
                    program = lower(
                        self.graph, eight, self.variant, key[2], choices, self._packs, self._limits, images=images
                    )
                except Unsupported:
                    if not eight and images == 1:
                        raise
                    program = None
                self._lowered[key] = program
            return self._lowered[key]

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run a batch.

        Args:
            inputs: One array (batch, ...) per input; converted to float32.

        Returns:
            One float32 array (batch, ...) per output.

        Raises:
            ValueError: The inputs do not have the shapes that the network was compiled for.
        """
        batch = self._check(inputs)
        arrays = [np.ascontiguousarray(x, np.float32) for x in inputs]
        results = [np.empty((batch, *self.graph.shapes[v]), np.float32) for v in self.graph.outputs]
        done = 0
        while done < batch:
            eight, images = self._layout(batch, batch - done)
            size = 8 if eight else images
            # Whole groups run one per thread; the remaining images run with all threads on each group.
            groups = (batch - done) // size // self.threads * self.threads if self.threads > 1 else 1
            lowered = self.lowered(eight, 1 if groups > 1 else None, images)
            assert lowered is not None
            count = size * groups if groups > 1 else min(size, batch - done)
            self._group(lowered, arrays, results, done, count, groups)
            done += count
        return results

    def _layout(self, batch: int, left: int) -> tuple[bool, int]:
        """Whether the next images of a batch run eight at once, or the last layers of how many; the same for any
        number of threads."""
        if left >= MIN_IMAGES_FOR_EIGHT and self.eight and self.lowered(True) is not None:
            return True, 1
        many = left >= self.images and batch >= max(MIN_IMAGES_FOR_EIGHT, self.images * default_threads())
        return False, self.images if many and self.lowered(False, images=self.images) is not None else 1

    def _group(
        self, lowered: Lowered, inputs: list[np.ndarray], outputs: list[np.ndarray], first: int, count: int,
        groups: int = 1, seconds: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Run images first .. first+count-1 in `groups` groups; a single group of eight may be partly empty."""
        each = count // groups if groups > 1 else count
        ins = [(x.ctypes.data + 4 * first * n, at, each * n) for x, (at, n) in zip(inputs, lowered.inputs)]
        outs = [(y.ctypes.data + 4 * first * n, at, each * n) for y, (at, n) in zip(outputs, lowered.outputs)]
        if groups > 1:
            lowered.program.run_groups(ins, outs, groups, self.threads)
        else:
            lowered.program.run(ins, outs, seconds)

    def profile(
        self, inputs: Sequence[np.ndarray], eight: bool = False, repeats: int = 10
    ) -> tuple[np.ndarray, list[int]]:
        """Measure each kernel call.

        Args:
            inputs: One array per input.
            eight: Eight images at once, or one.
            repeats: Number of runs, of which the minimum counts.

        Returns:
            Minimum seconds of each call, and the index of the node that it belongs to.

        Raises:
            Unsupported: The graph cannot run eight images at once.
        """
        lowered = self.lowered(eight)
        if lowered is None:
            raise Unsupported("this network runs one image at a time")
        arrays = [np.ascontiguousarray(np.resize(x, (lowered.batch, *x.shape[1:])), np.float32) for x in inputs]
        results = [np.empty((lowered.batch, *self.graph.shapes[v]), np.float32) for v in self.graph.outputs]
        best = np.full(lowered.program.size, np.inf)
        for _ in range(repeats):
            seconds = np.zeros(lowered.program.size)
            self._group(lowered, arrays, results, 0, lowered.batch, 1, seconds)
            np.minimum(best, seconds, out=best)
        return best, lowered.of_node

    def blank(self, batch: int = 1) -> list[np.ndarray]:
        """Return inputs of zeros.

        Args:
            batch: Number of images.

        Returns:
            One array per input.
        """
        return [np.zeros((batch, *self.graph.shapes[v]), np.float32) for v in self.graph.inputs]

    def choose_layout(self, batch: int, tries: int = 3) -> None:
        """Measure in which layout a batch runs fastest, and use that layout from now on.

        Args:
            batch: Number of images.
            tries: Number of timings per layout.
        """
        inputs = self.blank(batch)
        best = dict.fromkeys(((False, 1), (True, 1), (False, TOGETHER)), math.inf)
        for turn in range(1 + tries):
            for self.eight, self.images in list(best):
                if turn == 0 and self._layout(batch, batch) != (self.eight, self.images):
                    del best[self.eight, self.images]
                    continue
                start = time.perf_counter()
                self(inputs)
                if turn:  # the first round lowers the programs
                    key = self.eight, self.images
                    best[key] = min(best[key], time.perf_counter() - start)
        chosen = min(best, key=lambda layout: best[layout])
        self.eight, self.images = chosen if best[chosen] < MARGIN * best[False, 1] else (False, 1)
        self._forget({(False, 1), (self.eight, self.images)})

    def _forget(self, used: set[tuple[bool, int]]) -> None:
        """Free the programs and packed weights of all other layouts."""
        with self._lock:
            self._lowered = {key: lowered for key, lowered in self._lowered.items() if key[:2] in used}
            programs = [lowered.program for lowered in self._lowered.values() if lowered is not None]
            self._packs.keep({address for program in programs for address in program.arrays()})

    def weight_bytes(self) -> int:
        """Return the bytes of all constants that the graph and its programs so far hold, each counted once."""
        arrays = {}
        for node in self.graph.nodes:
            constants = [*node.arrays.values(), *(node.weight.arrays() if node.weight is not None else [])]
            arrays.update({a.ctypes.data: a.nbytes for a in constants})
        for lowered in self._lowered.values():
            if lowered is not None:
                arrays.update(lowered.program.arrays())
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
