"""The network as the engine sees it: operators on values, each value the shape of one image's share. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Shape = tuple[int, ...]
LARGEST = 1 << 31  # weights of a layer: positions are 32-bit


class Unsupported(ValueError):
    """This layout or this operator cannot serve the network; the caller has another way."""


@dataclass
class Weight:
    """A weight: dense, or its non-zeros by flat position."""

    shape: Shape
    values: np.ndarray
    position: np.ndarray | None  # int32, ascending; None: dense

    @classmethod
    def of(cls, dense: np.ndarray) -> Weight:
        """Sparse where that is the smaller way to keep it."""
        flat = np.ascontiguousarray(dense, np.float32).reshape(-1)
        position = np.flatnonzero(flat)
        if 2 * position.size > flat.size:
            return cls(dense.shape, flat, None)
        return cls(dense.shape, flat[position], position.astype(np.int32))

    @property
    def nonzeros(self) -> int:
        return int(np.count_nonzero(self.values))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def sound(self) -> bool:
        """Whether positions (ascending, within the shape) and values fit each other."""
        if not all(self.shape) or self.size >= LARGEST or self.values.ndim != 1 or self.values.dtype != np.float32:
            return False
        if self.position is None:
            return bool(self.values.size == self.size)
        position = self.position
        if position.shape != self.values.shape or position.dtype != np.int32:
            return False
        if not position.size:
            return True
        return bool(position[0] >= 0 and position[-1] < self.size and (position[1:] > position[:-1]).all())

    def entries(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions and values of the non-zeros."""
        if self.position is not None:
            return self.position, self.values
        position = np.flatnonzero(self.values).astype(np.int32)
        return position, self.values[position]

    def dense(self) -> np.ndarray:
        position, values = self.entries()
        flat = np.zeros(self.size, np.float32)
        flat[position] = values
        return flat.reshape(self.shape)

    def plain(self) -> Weight:
        """Itself; another kind of weight, spelled out."""
        return self

    def arrays(self) -> list[np.ndarray]:
        """What it holds in memory."""
        return [self.values] if self.position is None else [self.values, self.position]


@dataclass
class Node:
    """One operator. `attrs` are plain numbers, strings and lists of integers; `arrays` its constants."""

    op: str
    inputs: list[int]
    output: int
    name: str = ""
    attrs: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    weight: Weight | None = None

    @property
    def kernel(self) -> Weight:
        """The weight of a node that must have one."""
        if self.weight is None:
            raise ValueError(f"the operator {self.op} {self.name} has no weight")
        return self.weight


@dataclass
class Graph:
    """Nodes in the order they run; `shapes` of all values, without the batch dimension."""

    shapes: list[Shape] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def value(self, shape: Shape) -> int:
        self.shapes.append(tuple(int(n) for n in shape))
        return len(self.shapes) - 1

    def users(self) -> dict[int, list[Node]]:
        found: dict[int, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                found.setdefault(value, []).append(node)
        return found

    def with_weights(self, weights: dict[int, Weight]) -> Graph:
        """A graph like this one in which some nodes, by their index, hold another weight."""
        nodes = [replace(node, weight=weights.get(i, node.weight)) for i, node in enumerate(self.nodes)]
        return replace(self, nodes=nodes)

    def dense_bytes(self) -> int:
        return 4 * sum(node.weight.size for node in self.nodes if node.weight is not None)
