"""Chooses the fastest kernel for each layer by measurements, and caches the results."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from rankprune.engine.graph.graph import Graph, Node, Unsupported

from .alone import Decision, measure
from .build import warn_unwritable
from .choice import Choice
from .generated import jit_allowed
from .in_network import fastest, thread_counts
from .joined import joined_values
from .native import VERSION, cache_folder, lanes

CACHED_NONZEROS = (
    400_000  # a network with more, at about 10 bytes each, finds its weights in memory or in a shared cache
)
MOST_NONZEROS = 40_000_000  # of a network that is run with several kernels of each layer: all of them are in memory
Say = Callable[[str], None]


def tune(graph: Graph, eight: bool, variant: str, say: Say | None = None) -> dict[int, Decision]:
    """Choose a kernel for every layer that has several; layers that were measured before come from the cache.

    Layers are measured with one thread, so that a network's results do not depend on the number of threads. If its
    weights do not stay in the caches, kernels that are about as fast alone are compared in the running network: what a
    layer finds in the caches depends on the other layers.

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
    nonzeros = sum(n.kernel.nonzeros for n in graph.nodes if n.weight is not None)
    cold = nonzeros > CACHED_NONZEROS
    keys = {
        index: layer_key(graph, node, eight, joined, cold)
        for index, node in enumerate(graph.nodes)
        if _has_choices(graph, node, eight)
    }
    if not cold or eight or nonzeros > MOST_NONZEROS:
        decided = _alone_each(graph, keys, joined, eight, variant, cold, cache, say)
    else:
        decided = _in_network(graph, keys, joined, variant, cache, say)
    cache.save()
    return decided


def _in_network(
    graph: Graph, keys: dict[int, str], joined: frozenset[int], variant: str, cache: _Cache, say: Say | None
) -> dict[int, Decision]:
    """Compare kernels that are about as fast alone in the running network. The result holds for this network only."""
    layers = [keys.get(index, node.op) for index, node in enumerate(graph.nodes)]
    network = hashlib.sha256(json.dumps([layers, graph.shapes, thread_counts()]).encode()).hexdigest()[:24]
    known = {index: decision for index, key in keys.items() if (decision := cache.get(key + network)) is not None}
    if len(known) == len(keys):
        return known
    alone = _alone_each(graph, keys, joined, False, variant, True, cache, say)
    if len(alone) < len(keys):
        return alone
    if say is not None:
        say("comparing kernels in the network")
    best = fastest(graph, variant, {index: (d.choice, *d.close) for index, d in alone.items()}, keys)
    decided = {}
    for index, decision in alone.items():
        if best[index] != decision.choice:
            why = f"{decision.why}; faster in the network than {decision.choice}"
            decision = replace(decision, choice=best[index], why=why)
        cache.put(keys[index] + network, decision)
        decided[index] = decision
    return decided


def _alone_each(
    graph: Graph, keys: dict[int, str], joined: frozenset[int], eight: bool, variant: str, cold: bool, cache: _Cache,
    say: Say | None,
) -> dict[int, Decision]:  # fmt: skip
    decided: dict[int, Decision] = {}
    for number, (index, key) in enumerate(keys.items(), 1):
        if say is not None:
            say(f"tuning layer {number} of {len(keys)}{' for batches' if eight else ''}")
        decision = cache.get(key)
        if decision is None:
            try:
                decision = measure(graph, graph.nodes[index], joined, eight, variant, cold)
            except Unsupported:
                continue  # lowering the whole graph raises the same error, and reports it
            cache.put(key, decision)
        decided[index] = decision
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
                key: Decision(
                    _choice(e["choice"]), e["seconds"], e["dense_seconds"], e["why"], tuple(map(_choice, e["close"]))
                )
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
