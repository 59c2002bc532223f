"""Measures which kernel is fastest for each layer, and caches the results."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rankprune.engine.graph.graph import Graph, Node, Unsupported, Weight

from .build import warn_unwritable
from .choice import Choice
from .generated import jit_allowed
from .joined import joined_values
from .lowering import Lowered, lower
from .native import VERSION, cache_folder, lanes
from .packs import Packs
from .shape_choice import candidates

ROUNDS = 3  # each candidate is timed once per round
TRIES = 6  # timings of the finalists, each of a few repeats; the minimum counts, because noise only adds
MARGIN = 0.95  # a sparse kernel must take at most this fraction of the dense kernel's time
FINALISTS = 4
CACHED_NONZEROS = (
    400_000  # a network with more, at about 10 bytes each, finds its weights in memory or in a shared cache
)
TURN = 2e-3  # target seconds of a timing; a layer of eight images is usually long enough for a single repeat


@dataclass(frozen=True)
class Decision:
    """The kernel of a layer, and why it was chosen.

    Attributes:
        choice: The kernel.
        seconds: Its latency.
        dense_seconds: Latency of the best dense kernel; None if none was tried.
        why: The reason, for reports.
    """

    choice: Choice
    seconds: float
    dense_seconds: float | None
    why: str


def tune(graph: Graph, eight: bool, variant: str, say: Callable[[str], None] | None = None) -> dict[int, Decision]:
    """Choose a kernel for every layer that has several; layers that were measured before come from the cache.

    Layers are measured with one thread, so that a network's results do not depend on the number of threads.

    Args:
        graph: The network.
        eight: Eight images at once, or one.
        variant: The instruction set.
        say: Called with the progress.

    Returns:
        The decisions, by the index of the node.
    """
    cache = _Cache(variant)
    joined = frozenset() if eight else joined_values(graph, lanes(variant), jit_allowed())
    cold = sum(n.kernel.nonzeros for n in graph.nodes if n.weight is not None) > CACHED_NONZEROS
    decided: dict[int, Decision] = {}
    layers = [(index, node) for index, node in enumerate(graph.nodes) if _has_choices(graph, node, eight)]
    for number, (index, node) in enumerate(layers, 1):
        if say is not None:
            say(f"tuning layer {number} of {len(layers)}{' for batches' if eight else ''}")
        key = layer_key(graph, node, eight, joined, cold)
        decision = cache.get(key)
        if decision is None:
            try:
                decision = _measure(*_alone(graph, node, joined), eight, variant, cold)
            except Unsupported:
                continue  # lowering the whole graph raises the same error, and reports it
            cache.put(key, decision)
        decided[index] = decision
    cache.save()
    return decided


def _has_choices(graph: Graph, node: Node, eight: bool) -> bool:
    """Whether a node runs on a kernel that has several shapes: a linear layer of one vector has not."""
    return node.op == "conv" or (node.op == "linear" and (eight or len(graph.shapes[node.output]) == 2))


def layer_key(graph: Graph, node: Node, eight: bool, joined: frozenset[int] = frozenset(), cold: bool = False) -> str:
    """Return the cache key of a layer: its shapes and density, on which its latency depends.

    Args:
        graph: The network.
        node: The layer.
        eight: Eight images at once, or one.
        joined: Images whose rows follow one another.
        cold: The weights of the network do not stay in the caches.

    Returns:
        24 hexadecimal digits.
    """
    weight = node.kernel
    shapes = [graph.shapes[v] for v in (*node.inputs, node.output)]
    attrs = {k: v for k, v in node.attrs.items() if k != "name"}
    density = f"{weight.nonzeros / max(weight.size, 1):.2g}"
    alike = [v in joined for v in (*node.inputs, node.output)]
    known = json.dumps([node.op, shapes, attrs, weight.shape, density, eight, alike, cold], sort_keys=True)
    return hashlib.sha256(known.encode()).hexdigest()[:24]


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


def _measure(graph: Graph, joined: frozenset[int], eight: bool, variant: str, cold: bool) -> Decision:
    node = graph.nodes[1]
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
        return Decision(sparse.choice, sparse.least, None, "too sparse to try dense kernels")
    if sparse is None or sparse.least > MARGIN * dense.least:
        return Decision(dense.choice, dense.least, dense.least, "sparse is not 5 % faster")
    return Decision(sparse.choice, sparse.least, dense.least, f"{dense.least / sparse.least:.2f} x faster than dense")


def cpu_model() -> str:
    """Return the CPU's model, as part of the cache's key."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    names = ("model name", "cpu family", "model", "CPU implementer", "CPU part")
    values = {key.strip(): value.strip() for key, value in fields.items()}
    return " ".join(values[name] for name in names if name in values) or platform.machine()


def _choice(entry: dict[str, int]) -> Choice:
    """A choice from a cache file. `fit` makes it valid for its layer."""
    if any(not isinstance(number, int) for number in entry.values()):
        raise TypeError("a choice with values that are not integers")
    return Choice(**entry)  # type: ignore[arg-type]


class _Cache:
    """Decisions of earlier processes, one file per CPU model, instruction set and kernel version."""

    def __init__(self, variant: str) -> None:
        name = hashlib.sha256(f"{cpu_model()}|{variant}|{VERSION}".encode()).hexdigest()[:16]
        self.path = cache_folder() / "choices" / f"{name}.json"
        self.entries = self._read()
        self.fresh: dict[str, Decision] = {}

    def _read(self) -> dict[str, Decision]:
        try:
            raw = json.loads(self.path.read_text())
            return {
                key: Decision(_choice(e["choice"]), *(e[k] for k in ("seconds", "dense_seconds", "why")))
                for key, e in raw.items()
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}  # missing or damaged, so that layers are measured again

    def get(self, key: str) -> Decision | None:
        return self.entries.get(key)

    def put(self, key: str, decision: Decision) -> None:
        self.entries[key] = self.fresh[key] = decision

    def save(self) -> None:
        """Merge with what others wrote meanwhile. If the cache cannot be written, the next process measures again."""
        if not self.fresh:
            return
        merged = {**self._read(), **self.fresh}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent)
            with os.fdopen(handle, "w") as file:
                json.dump({key: asdict(d) for key, d in merged.items()}, file)
            os.replace(name, self.path)
        except OSError as error:
            warn_unwritable(self.path.parent, error)
