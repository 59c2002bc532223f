"""Measures the kernels of one layer alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rankprune.engine.graph.graph import Graph, Node, Weight

from .choice import Choice
from .generated import jit_allowed
from .lowering import Lowered, lower
from .native import lanes
from .packs import Packs
from .shape_choice import candidates

ROUNDS = 3  # each candidate is timed once per round
TRIES = 6  # timings of the finalists, each of a few repeats; the minimum counts, because noise only adds
MARGIN = 0.95  # a sparse kernel must take at most this fraction of the dense kernel's time
FINALISTS = 4
CLOSE = 1.5  # kernels that take at most this times as long as the fastest may be faster inside the network
MOST_CLOSE = 4
TURN = 2e-3  # target seconds of a timing; a layer of eight images is usually long enough for a single repeat


@dataclass(frozen=True)
class Decision:
    """The kernel of a layer, and why it was chosen.

    Attributes:
        choice: The kernel.
        seconds: Its latency.
        dense_seconds: Latency of the best dense kernel; None if none was tried.
        why: The reason, for reports.
        close: Kernels that may be faster inside the network.
    """

    choice: Choice
    seconds: float
    dense_seconds: float | None
    why: str
    close: tuple[Choice, ...] = ()


def _alone(graph: Graph, node: Node, joined: frozenset[int]) -> tuple[Graph, frozenset[int]]:
    """A graph of this layer only, and which of its images have their rows joined.

    Its input passes an activation, so that it lies in the engine's own layout.
    """
    alone = Graph()
    inputs = [alone.value(graph.shapes[v]) for v in node.inputs]
    alone.inputs = list(inputs)
    source = alone.value(graph.shapes[node.inputs[0]])
    alone.nodes.append(Node("activation", [inputs[0]], source, attrs={"activation": "none"}))
    output = alone.value(graph.shapes[node.output])
    alone.nodes.append(Node(node.op, [source, *inputs[1:]], output, "", node.attrs, node.arrays, node.weight))
    alone.outputs = [output]
    pairs = [*zip(node.inputs, inputs), (node.inputs[0], source), (node.output, output)]
    return alone, frozenset(copy for original, copy in pairs if original in joined)


class _Trial:
    def __init__(
        self, graph: Graph, joined: frozenset[int], eight: bool, variant: str, choice: Choice, packs: Packs
    ) -> None:
        self.lowered: Lowered = lower(graph, eight, variant, 1, {1: choice}, packs, joined=joined)
        self.choice = self.lowered.choices[1]
        # The layer, and copies of its input.
        self.calls = [i for i, node in enumerate(self.lowered.of_node) if node == 1]
        self.times: list[float] = []

    def time(self, repeats: int, cold: bool) -> None:
        self.times.append(sum(self.lowered.program.time(call, repeats, cold) for call in self.calls))

    @property
    def least(self) -> float:
        return min(self.times)


def measure(graph: Graph, node: Node, joined: frozenset[int], eight: bool, variant: str, cold: bool) -> Decision:
    """Measure the kernels of a layer.

    Args:
        graph: The network.
        node: The layer.
        joined: Images whose rows follow one another.
        eight: Eight images at once, or one.
        variant: The instruction set.
        cold: The weights of the network do not stay in the caches.

    Returns:
        The fastest kernel.

    Raises:
        Unsupported: This layout cannot run the layer.
    """
    graph, joined = _alone(graph, node, joined)
    packs = Packs()
    lowered = lower(graph, eight, variant, 1, packs=packs, joined=joined)
    weight: Weight = node.kernel
    groups, rows = node.attrs.get("groups", 1), lowered.rows[1]
    offered = [lowered.choices[1], *candidates(weight, groups, rows, lanes(variant), jit_allowed())]
    trials: dict[Choice, _Trial] = {}
    for choice in offered:
        trial = _Trial(graph, joined, eight, variant, choice, packs)
        trials.setdefault(trial.choice, trial)
    for _ in range(ROUNDS):
        for trial in trials.values():
            trial.time(1, cold)
    ranked = sorted(trials.values(), key=lambda t: t.least)
    final = ranked[:FINALISTS]
    dense = next((t for t in ranked if t.choice.dense), None)
    if dense is not None and dense not in final:
        final.append(dense)
    for _ in range(TRIES):  # interleaved, so that a slow phase of the machine affects all candidates
        for trial in final:
            trial.time(max(1, min(4, round(TURN / trial.least))), cold)
    sparse = min((t for t in final if not t.choice.dense), key=lambda t: t.least, default=None)
    if dense is None:
        assert sparse is not None
        return _decision(sparse, trials.values(), None, "too sparse to try dense kernels")
    if sparse is None or sparse.least > MARGIN * dense.least:
        return _decision(dense, trials.values(), dense.least, "sparse is not 5 % faster")
    why = f"{dense.least / sparse.least:.2f} x faster than dense"
    return _decision(sparse, trials.values(), dense.least, why)


def _decision(best: _Trial, trials: Iterable[_Trial], dense_seconds: float | None, why: str) -> Decision:
    """Add the next kernels of each kind that are about as fast, and the tallest with code however slow it is: alone,
    code comes from memory, while in the network the layer before has begun to load it."""
    alike = sorted((t for t in trials if t.choice.dense == best.choice.dense), key=lambda t: t.least)
    near = [t for t in alike if t.least <= CLOSE * best.least]
    lists = [t.choice for t in near if not t.choice.jit]
    code = [t.choice for t in near if t.choice.jit]
    tallest = sorted((t.choice for t in alike if t.choice.jit), key=lambda choice: -choice.height)[:1]
    close = dict.fromkeys([*tallest, *lists[:1], *code[:2], *lists[1:3]])
    close.pop(best.choice, None)
    return Decision(best.choice, best.least, dense_seconds, why, tuple(close)[:MOST_CLOSE])
