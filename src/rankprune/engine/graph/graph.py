"""The network as the engine sees it: operators on values, whose shapes are those of one image. Independent of torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Shape = tuple[int, ...]
LARGEST = 1 << 31  # limit of a layer's weights, because positions are 32-bit


class Unsupported(ValueError):
    """The layout or the operator cannot be used for this network; the caller has an alternative."""


@dataclass
class Weight:
    """A weight: dense, or its nonzeros by flat position.

    Attributes:
        shape: Its shape.
        values: float32; all values, or those of the nonzeros.
        position: int32, ascending flat positions of the nonzeros; None if the weight is dense.
    """

    shape: Shape
    values: np.ndarray
    position: np.ndarray | None

    @classmethod
    def of(cls, dense: np.ndarray) -> Weight:
        """Create a weight, sparse if that needs less memory.

        Args:
            dense: The values.

        Returns:
            The weight.
        """
        flat = np.ascontiguousarray(dense, np.float32).reshape(-1)
        position = np.flatnonzero(flat != 0)  # three times as fast as flatnonzero of floats
        if 2 * position.size > flat.size:
            return cls(dense.shape, flat, None)
        return cls(dense.shape, flat[position], position.astype(np.int32))

    @property
    def nonzeros(self) -> int:
        """Number of nonzeros."""
        return int(np.count_nonzero(self.values))

    @property
    def size(self) -> int:
        """Number of values, including zeros."""
        return math.prod(self.shape)

    def sound(self) -> bool:
        """Whether positions and values are valid for the shape."""
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
        """Return positions and values of the nonzeros."""
        if self.position is not None:
            return self.position, self.values
        position = np.flatnonzero(self.values != 0).astype(np.int32)
        return position, self.values[position]

    def dense(self) -> np.ndarray:
        """Return all values, in the weight's shape."""
        position, values = self.entries()
        flat = np.zeros(self.size, np.float32)
        flat[position] = values
        return flat.reshape(self.shape)

    def plain(self) -> Weight:
        """Return the weight as an ordinary `Weight`."""
        return self

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays that it holds in memory."""
        return [self.values] if self.position is None else [self.values, self.position]


@dataclass
class Node:
    """One operator.

    Attributes:
        op: Its name, one of `operator_table.OPERATORS`.
        inputs: The values it reads.
        output: The value it writes.
        name: Name of the layer, for reports.
        attrs: Plain numbers, strings and lists of integers.
        arrays: Constants by name.
        weight: The weight of a layer.
    """

    op: str
    inputs: list[int]
    output: int
    name: str = ""
    attrs: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    weight: Weight | None = None

    @property
    def kernel(self) -> Weight:
        """The weight of a node that must have one.

        Raises:
            ValueError: It has none.
        """
        if self.weight is None:
            raise ValueError(f"the operator {self.op} {self.name} has no weight")
        return self.weight


@dataclass
class Graph:
    """A network: nodes in the order in which they run.

    Attributes:
        shapes: Shape of each value, without the batch.
        nodes: The operators.
        inputs: Values that the caller gives.
        outputs: Values that are returned.
    """

    shapes: list[Shape] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def value(self, shape: Shape) -> int:
        """Add a value.

        Args:
            shape: Its shape, without the batch.

        Returns:
            Its index.
        """
        self.shapes.append(tuple(int(n) for n in shape))
        return len(self.shapes) - 1

    def users(self) -> dict[int, list[Node]]:
        """Return the nodes that read each value."""
        users: dict[int, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                users.setdefault(value, []).append(node)
        return users

    def with_weights(self, weights: dict[int, Weight]) -> Graph:
        """Return a copy in which some nodes have other weights.

        Args:
            weights: The weights, by the index of the node.

        Returns:
            The copy.
        """
        nodes = [replace(node, weight=weights.get(i, node.weight)) for i, node in enumerate(self.nodes)]
        return replace(self, nodes=nodes)

    def dense_bytes(self) -> int:
        """Return the bytes of all weights if they were dense."""
        return 4 * sum(node.weight.size for node in self.nodes if node.weight is not None)
