"""Divides a captured module into steps: segments for the kernels and islands for torch, as few as possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx

from rankprune.engine.graph.graph import Graph

from .capture import Captured, Foreign, Literal
from .islands import Island, Key, build
from .refs import Ref, Size, in_order

HEAVY = ("conv", "linear", "attention")  # operators that can outweigh the cost of switching between torch and kernels


@dataclass
class Segment:
    """A part that the kernels run.

    Attributes:
        graph: Its graph.
        inputs: Values of the whole graph that it reads.
        outputs: Values of the whole graph that later steps read.
        origins: The traced nodes that it replaces.
        computed: Values that it computes, before operators are fused.
    """

    graph: Graph
    inputs: list[int]
    outputs: list[int]
    origins: list[fx.Node]
    computed: frozenset[int]

    def heavy(self) -> bool:
        """Whether it has operators that can outweigh the cost of switching between torch and the kernels."""
        return any(node.op in HEAVY for node in self.graph.nodes)


Step = Segment | Island


def cut(captured: Captured) -> list[Step]:
    """Divide a captured module into steps.

    Args:
        captured: The captured module.

    Returns:
        The steps, in the order in which they run.
    """
    graph = captured.graph
    if not captured.torch and all(isinstance(out, int) for out in captured.outputs):
        # A single segment with the module's own inputs and outputs, which can be saved as a plan.
        computed = frozenset(node.output for node in graph.nodes)
        return [Segment(graph, graph.inputs, graph.outputs, captured.origins, computed)]
    parts = list(_schedule(captured))
    wanted: set[Key] = {key_of(out) for out in captured.outputs if not isinstance(out, Literal)}
    steps: list[Step] = []
    for part in reversed(parts):  # from the end, because a step must return what later steps need
        step = _segment(captured, part, wanted) if isinstance(part[0], int) else _island(captured, part, wanted)
        wanted |= set(step.inputs)
        steps.append(step)
    return steps[::-1]


def as_island(captured: Captured, segment: Segment) -> Island:
    """Return what torch would run instead of a segment.

    Args:
        captured: The captured module.
        segment: The segment.

    Returns:
        The island; its outputs are those of the traced nodes.
    """
    nodes = [n for n in captured.traced.module.graph.nodes if n in set(segment.origins)]
    last = [n for n in nodes if any(user not in set(nodes) for user in n.users) or not n.users]
    return build(captured, nodes, [n.name for n in last], segment.computed, segment.inputs)


def key_of(out: int | fx.Node) -> Key:
    """Return the key of an output.

    Args:
        out: A value of the graph or a traced node.

    Returns:
        The key.
    """
    return out.name if isinstance(out, fx.Node) else out


def _segment(captured: Captured, part: list[Any], wanted: set[Key]) -> Segment:
    graph = captured.graph
    nodes = [graph.nodes[i] for i in part]
    computed = frozenset(node.output for node in nodes)
    inputs = list(dict.fromkeys(v for node in nodes for v in node.inputs if v not in computed))
    outputs = [node.output for node in nodes if node.output in wanted]
    used = {*computed, *inputs}
    shapes = [shape if i in used else () for i, shape in enumerate(graph.shapes)]
    origins = [captured.origins[i] for i in part]
    return Segment(Graph(shapes, nodes, inputs, outputs), inputs, outputs, origins, computed)


def _island(captured: Captured, part: list[fx.Node], wanted: set[Key]) -> Island:
    inside = set(part)
    outputs: list[Key] = [node.name for node in part if node.name in wanted]
    outputs += [value for value, node in captured.entered.items() if node in inside and value in wanted]
    return build(captured, part, outputs)


def _schedule(captured: Captured) -> Iterator[list[Any]]:
    """Alternate between parts of graph nodes (by index) and of traced nodes; each takes all that is ready."""
    needs = _needs(captured)
    producers = {node.output: i for i, node in enumerate(captured.graph.nodes)}
    outputs = [out for out in captured.outputs if not isinstance(out, Literal)]
    ends: list[Any] = [out if isinstance(out, fx.Node) else producers.get(out) for out in outputs]
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
        for item in waiting[native]:  # each list is in topological order
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
    """For each graph node (by index) and torch node, those whose results it reads."""
    producers = {node.output: i for i, node in enumerate(captured.graph.nodes)}
    needs: dict[Any, set[Any]] = {}

    def of_value(value: int) -> set[Any]:
        source = captured.entered.get(value)
        item = producers.get(value) if source is None else source
        return set() if item is None or (source is not None and source not in captured.torch) else {item}

    def of_node(node: fx.Node) -> set[Any]:
        if node.op == "get_attr":
            return set()
        value = captured.outside(node)
        if isinstance(value, Foreign):
            return {node} if node in captured.torch else set()
        if isinstance(value, Ref) and in_order(value):
            return of_value(value.value)
        if isinstance(value, Size) and str(node.target) == "aten.sym_size.int":
            return set()
        if isinstance(value, Size) or node in captured.moved:
            return set().union(*(of_node(n) for n in node.all_input_nodes))
        return set()

    for i, entry in enumerate(captured.graph.nodes):
        needs[i] = set().union(*(of_value(v) for v in entry.inputs))
    for node in captured.torch:
        inputs = [] if str(node.target) == "aten.sym_size.int" else node.all_input_nodes
        needs[node] = set().union(*(of_node(n) for n in inputs))
    return needs
