"""Measures kernels of all layers inside the running network, where they share its caches with the other layers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from rankprune.engine.graph.graph import Graph

from .choice import Choice
from .cores import default_threads
from .lowering import Lowered, lower
from .packs import Packs

ROUNDS = 10  # timings of each program; the minimum of each layer counts
PATIENCE = 0.6  # seconds after which no further round with a number of threads begins
MOST_BYTES = 1 << 30  # of the values of all programs together
MARGIN = 0.98  # another kernel must take at most this fraction of the first one's time


def thread_counts() -> tuple[int, ...]:
    """Return the numbers of threads with which networks are run: one and two, if this process may use two cores.

    Two threads also show what a kernel costs because it reads what another core has written. The kernels are the same
    for every number of threads, so that the results are.
    """
    return (1, 2) if default_threads() > 1 else (1,)


def fastest(
    graph: Graph, variant: str, offered: Mapping[int, Sequence[Choice]], alike: Mapping[int, str]
) -> dict[int, Choice]:
    """Choose among kernels of each layer by running the whole network with them, one image at a time.

    The kernel with the least core-seconds, summed over the numbers of threads, is taken. There are as many programs as
    a layer has kernels to choose among, each with the next kernel of every layer; they run in turns. Layers that are
    alike get the same kernel.

    Args:
        graph: The network.
        variant: The instruction set.
        offered: Kernels of each layer, by the index of the node; the first one stays unless another is clearly faster.
        alike: A name for each layer, the same for layers that are alike.

    Returns:
        The kernel of each layer; the first ones if the values of all programs would take too much memory.
    """
    count, first = max(map(len, offered.values())), {node: choices[0] for node, choices in offered.items()}
    packs = Packs()
    if count == 1 or 4 * count * lower(graph, False, variant, 1, first, packs).arena > MOST_BYTES:
        return first
    plans = [{node: choices[min(i, len(choices) - 1)] for node, choices in offered.items()} for i in range(count)]
    seconds = np.zeros((count, len(graph.nodes)))
    for threads in thread_counts():
        programs = [lower(graph, False, variant, threads, plan, packs) for plan in plans]
        seconds += threads * _in_turns(graph, programs)
    total = {name: np.zeros(count) for name in alike.values()}
    for node in offered:
        total[alike[node]] += seconds[:, node]
    best = {}
    for name, spent in total.items():
        least = int(np.argmin(spent))
        best[name] = least if spent[least] <= MARGIN * spent[0] else 0
    return {node: plans[best[alike[node]]][node] for node in offered}


def _in_turns(graph: Graph, programs: Sequence[Lowered]) -> np.ndarray:
    """Minimum seconds of each node in each program; copies of its input count for a layer."""
    inputs = [np.zeros(graph.shapes[v], np.float32) for v in graph.inputs]
    outputs = [np.empty(graph.shapes[v], np.float32) for v in graph.outputs]
    best = np.full((len(programs), len(graph.nodes)), np.inf)
    began = time.perf_counter()
    for turn in range(1 + ROUNDS):
        for lowered, least in zip(programs, best):
            spent = np.zeros(lowered.program.size)
            ins = [(x.ctypes.data, at, n) for x, (at, n) in zip(inputs, lowered.inputs)]
            outs = [(y.ctypes.data, at, n) for y, (at, n) in zip(outputs, lowered.outputs)]
            lowered.program.run(ins, outs, spent)
            nodes = np.array(lowered.of_node)
            if turn:  # the first one touches the memory for the first time
                each = np.bincount(nodes[nodes >= 0], spent[nodes >= 0], len(graph.nodes))
                np.minimum(least, each, out=least)
        if turn > 1 and time.perf_counter() - began > PATIENCE:
            break
    return best
