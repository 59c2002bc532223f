"""Cuts a graph at its islands: stretches the kernels run, and single operators torch runs between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .graph import Graph, Node


@dataclass
class Segment:
    """A stretch for the kernels; `inputs` and `outputs` are values of the whole graph."""

    graph: Graph
    inputs: list[int]
    outputs: list[int]


@dataclass(frozen=True)
class Island:
    """One operator that torch runs on the whole batch."""

    name: str
    inputs: list[int]
    output: int
    call: Callable[[int, list[Tensor]], Tensor] = field(repr=False)

    def run(self, values: dict[int, np.ndarray]) -> np.ndarray:
        tensors = [torch.from_numpy(values[v]) for v in self.inputs]
        with torch.no_grad():
            return np.ascontiguousarray(self.call(tensors[0].shape[0], tensors).numpy())


def cut(graph: Graph, islands: dict[int, Callable[..., Any]]) -> list[Segment | Island]:
    """In the order they run. Every segment is as long as the islands allow."""
    if all(node.op != "island" for node in graph.nodes):  # a plan is this: inputs and outputs as the module has them
        return [Segment(graph, graph.inputs, graph.outputs)]
    steps: list[Segment | Island] = []
    waiting: list[Node] = []
    later = _last_use(graph)

    def close(position: int) -> None:
        if waiting:
            steps.append(_segment(graph, list(waiting), later, position))
            waiting.clear()

    for position, node in enumerate(graph.nodes):
        if node.op == "island":
            close(position)
            steps.append(Island(node.attrs["operator"], node.inputs, node.output, islands[node.output]))
        else:
            waiting.append(node)
    close(len(graph.nodes))
    return steps


def _last_use(graph: Graph) -> dict[int, int]:
    last = {value: i for i, node in enumerate(graph.nodes) for value in node.inputs}
    return last | dict.fromkeys(graph.outputs, len(graph.nodes))


def _segment(graph: Graph, nodes: list[Node], last: dict[int, int], position: int) -> Segment:
    made = {node.output for node in nodes}
    inputs = list(dict.fromkeys(v for node in nodes for v in node.inputs if v not in made))
    outputs = [node.output for node in nodes if last.get(node.output, -1) >= position]
    return Segment(Graph(graph.shapes, nodes, inputs, outputs), inputs, outputs)
