"""What an RPG mask update costs on many ranks, from costs measured on one. Pure functions; `scale.py` prints them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rankprune.rank.gradient import cost
from rankprune.rank.workers import assign_owners

HISTOGRAM = (1 << 16) * 8  # bytes: counts of 16 bits of a score
SELECTIONS = 4  # a layer takes part in: over all layers, and within it what falls out, what stays, what grows
PASSES = 2  # histograms a selection
SMALL = 8  # all-reduces of a few counts, a layer
FLOAT = 4


@dataclass(frozen=True)
class Measured:
    """Seconds on one thread of the machine at hand."""

    per_weight: float  # of all selections and the writing of masks
    per_layer: float  # the same, of a layer too small to matter
    per_operation: float  # of a rank gradient, by `rankprune.rank.gradient.cost`


@dataclass(frozen=True)
class Network:
    """Assumed, not measured."""

    bandwidth: float  # bytes a second in and out of one rank
    latency: float  # seconds a message

    def all_reduce(self, size: float, ranks: int) -> float:
        """Ring for the bytes, tree for the latency."""
        return 2 * (ranks - 1) / ranks * size / self.bandwidth + 2 * math.ceil(math.log2(ranks)) * self.latency


@dataclass(frozen=True)
class Cost:
    """Of one update."""

    select: float  # seconds
    rank_work: float
    wire: float
    sent: float  # bytes a rank sends, the busiest one
    memory: float  # bytes a rank needs beyond weights, gradients and optimizer, the fullest one

    @property
    def seconds(self) -> float:
        return self.select + self.rank_work + self.wire


def sharded(shapes: Sequence[tuple[int, int]], ranks: int, on: Measured, net: Network) -> Cost:
    """Weights split by rows over the ranks (FSDP2): histograms travel, a layer goes to its owner for rank work."""
    sizes = [m * n for m, n in shapes]
    costs = [cost(shape) for shape in shapes]
    owner = assign_owners(costs, ranks)
    work, held = [0.0] * ranks, [0.0] * ranks
    for mine, operations, size in zip(owner, costs, sizes):
        work[mine] += operations * on.per_operation
        held[mine] += 2 * FLOAT * size  # the gathered weights and their gradient, of all layers it owns
    select = sum(on.per_layer + on.per_weight * size / ranks for size in sizes)
    histograms = SELECTIONS * PASSES * len(shapes)
    share = (ranks - 1) / ranks
    wire = sent = 0.0
    if ranks > 1:
        wire = histograms * net.all_reduce(HISTOGRAM, ranks) + SMALL * len(shapes) * net.all_reduce(8, ranks)
        # A layer goes to its owner and its gradient comes back, one layer after another: the owner's link is the limit.
        hops = 2 * math.ceil(math.log2(ranks)) * net.latency
        wire += sum(2 * share * FLOAT * size / net.bandwidth + hops for size in sizes)
        gradients = [FLOAT * share * sum(s for o, s in zip(owner, sizes) if o == rank) for rank in range(ranks)]
        weights = FLOAT * sum(sizes) / ranks
        sent = histograms * 2 * share * HISTOGRAM + max(gradients) + weights
    masks = sum(sizes) / ranks  # one byte a weight
    scratch = FLOAT * sum(sizes) / ranks  # the rank gradient until growth has read it
    return Cost(select, max(work), wire, sent, masks + scratch + max(held) + HISTOGRAM)


def replicated(shapes: Sequence[tuple[int, int]], ranks: int, on: Measured, net: Network) -> Cost:
    """Every rank holds all weights (DDP) and selects for itself; owners work rank gradients and broadcast them."""
    sizes = [m * n for m, n in shapes]
    costs = [cost(shape) for shape in shapes]
    owner = assign_owners(costs, ranks)
    work = [0.0] * ranks
    for mine, operations in zip(owner, costs):
        work[mine] += operations * on.per_operation
    select = sum(on.per_layer + on.per_weight * size for size in sizes)
    wire = sent = 0.0
    if ranks > 1:
        hops = math.ceil(math.log2(ranks))
        wire = sum(FLOAT * size / net.bandwidth + hops * net.latency for size in sizes)
        sent = FLOAT * sum(sizes)  # a pipelined chain: what comes in goes out once
    return Cost(select, max(work), wire, sent, sum(sizes) * (1 + FLOAT) + HISTOGRAM)


def transformer(width: int, blocks: int) -> list[tuple[int, int]]:
    """Matrices of a decoder: query, key and value in one, the projection, two of the MLP."""
    block = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    return block * blocks
