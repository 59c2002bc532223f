"""Cuts a captured module into steps: stretches for the kernels and islands for torch, as few as the order allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx

from rankprune.engine.graph.graph import Graph

from .capture import Captured, Foreign, Literal, in_order
from .islands import Island, Key, build
from .refs import Ref, Size

HEAVY = ("conv", "linear", "attention")  # operators that can make up for the way between torch and the kernels


@dataclass
class Segment:
    """A stretch for the kernels; `inputs` and `outputs` are values of the whole graph."""

    graph: Graph
    inputs: list[int]
    outputs: list[int]
    origins: list[fx.Node]  # the traced nodes it stands for
    made: frozenset[int]  # values it made before operators were fused

    def heavy(self) -> bool:
        return any(node.op in HEAVY for node in self.graph.nodes)


Step = Segment | Island


def cut(captured: Captured) -> list[Step]:
    """In the order they run."""
    graph = captured.graph
    if not captured.torch and all(isinstance(out, int) for out in captured.outputs):
        # A plan is this: inputs and outputs as the module has them.
        made = frozenset(node.output for node in graph.nodes)
        return [Segment(graph, graph.inputs, graph.outputs, captured.origins, made)]
    parts = list(_schedule(captured))
    wanted: set[Key] = {key_of(out) for out in captured.outputs if not isinstance(out, Literal)}
    steps: list[Step] = []
    for part in reversed(parts):  # from the end, where it is known what the steps behind need
        step = _segment(captured, part, wanted) if isinstance(part[0], int) else _island(captured, part, wanted)
        wanted |= set(step.inputs)
        steps.append(step)
    return steps[::-1]


def as_island(captured: Captured, segment: Segment) -> Island:
    """What torch would run in the place of a segment; its outputs are those of the traced nodes."""
    nodes = [n for n in captured.traced.module.graph.nodes if n in set(segment.origins)]
    last = [n for n in nodes if any(user not in set(nodes) for user in n.users) or not n.users]
    return build(captured, nodes, [n.name for n in last], segment.made, segment.inputs)


def key_of(out: int | fx.Node) -> Key:
    return out.name if isinstance(out, fx.Node) else out


def _segment(captured: Captured, part: list[Any], wanted: set[Key]) -> Segment:
    graph = captured.graph
    nodes = [graph.nodes[i] for i in part]
    made = frozenset(node.output for node in nodes)
    inputs = list(dict.fromkeys(v for node in nodes for v in node.inputs if v not in made))
    outputs = [node.output for node in nodes if node.output in wanted]
    used = {*made, *inputs}
    shapes = [shape if i in used else () for i, shape in enumerate(graph.shapes)]
    return Segment(Graph(shapes, nodes, inputs, outputs), inputs, outputs, [captured.origins[i] for i in part], made)


def _island(captured: Captured, part: list[fx.Node], wanted: set[Key]) -> Island:
    inside = set(part)
    outputs: list[Key] = [node.name for node in part if node.name in wanted]
    outputs += [value for value, node in captured.entered.items() if node in inside and value in wanted]
    return build(captured, part, outputs)


def _schedule(captured: Captured) -> Iterator[list[Any]]:
    """Parts of graph nodes (by index) and of traced nodes, in turn; each takes all that is ready."""
    needs = _needs(captured)
    made = {node.output: i for i, node in enumerate(captured.graph.nodes)}
    found = [out for out in captured.outputs if not isinstance(out, Literal)]
    ends: list[Any] = [out if isinstance(out, fx.Node) else made.get(out) for out in found]
    live: set[Any] = set()
    stack = [item for item in ends if item in needs]
    while stack:
        item = stack.pop()
        if item not in live:
            live.add(item)
            stack.extend(needs[item])
    waiting: dict[bool, list[Any]] = {
        True: [i for i in range(len(captured.graph.nodes)) if i in live],
        False: [n for n in captured.torch if n in live],
    }
    done: set[Any] = set()
    native, idle = True, 0
    while waiting[True] or waiting[False]:
        part, left = [], []
        for item in waiting[native]:  # each list is in an order it can run in
            if needs[item] <= done:
                part.append(item)
                done.add(item)
            else:
                left.append(item)
        waiting[native] = left
        idle = 0 if part else idle + 1
        if idle > 2:
            raise AssertionError("steps that wait for each other")
        if part:
            yield part
        native = not native


def _needs(captured: Captured) -> dict[Any, set[Any]]:
    """For every graph node (by index) and torch node: those whose results it reads."""
    made = {node.output: i for i, node in enumerate(captured.graph.nodes)}
    found: dict[Any, set[Any]] = {}

    def of_value(value: int) -> set[Any]:
        source = captured.entered.get(value)
        item = made.get(value) if source is None else source
        return set() if item is None or (source is not None and source not in captured.torch) else {item}

    def of_node(node: fx.Node) -> set[Any]:
        if node.op == "get_attr":
            return set()
        held = captured.outside(node)
        if isinstance(held, Foreign):
            return {node} if node in captured.torch else set()
        if isinstance(held, Ref) and in_order(held):
            return of_value(held.value)
        if isinstance(held, Size) and str(node.target) == "aten.sym_size.int":
            return set()
        if isinstance(held, Size) or node in captured.moved:
            return set().union(*(of_node(n) for n in node.all_input_nodes))
        return set()

    for i, entry in enumerate(captured.graph.nodes):
        found[i] = set().union(*(of_value(v) for v in entry.inputs))
    for node in captured.torch:
        inputs = [] if str(node.target) == "aten.sym_size.int" else node.all_input_nodes
        found[node] = set().union(*(of_node(n) for n in inputs))
    return found
