"""Islands: parts of a traced module that torch runs, each as one fx.GraphModule."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from .capture import Captured, Foreign, module_name
from .refs import Ref, Size, in_order
from .trace import batch_axis

_aten = torch.ops.aten
Key = int | str  # a value of the graph, (batch, ...) in float32; or the name of a traced node that torch computes


@dataclass(frozen=True)
class Island:
    """A part that torch runs.

    Attributes:
        call: Takes the batch size and the inputs, and returns the outputs.
        inputs: Keys of the inputs.
        outputs: Keys of the outputs.
        operators: (operator, module, reason why torch runs it) of each.
    """

    call: fx.GraphModule = field(repr=False)
    inputs: list[Key]
    outputs: list[Key]
    operators: list[tuple[str, str, str]]

    def run(self, batch: int, values: Sequence[Any]) -> Sequence[Any]:
        """Run the island.

        Args:
            batch: The batch size.
            values: The inputs.

        Returns:
            The outputs.
        """
        return self.call(batch, *values)  # type: ignore[no-any-return]


def build(
    captured: Captured,
    nodes: Sequence[fx.Node],
    outputs: list[Key],
    inside: Collection[int] = (),
    entered: Collection[int] = (),
) -> Island:
    """Build an island.

    Args:
        captured: The captured module.
        nodes: The traced nodes to run, in order.
        outputs: Keys of the values to return.
        inside: Values of the graph that the nodes compute themselves, if the island replaces a segment.
        entered: Values of the graph that other islands have prepared for the kernels, if it replaces a segment.

    Returns:
        The island.
    """
    builder = _Builder(captured, nodes, inside, entered)
    for node in nodes:
        builder.place(node)
    builder.output(outputs)
    listed = [
        (str(node.target), module_name(node), captured.torch.get(node, ""))
        for node in nodes
        if isinstance(node.target, torch._ops.OperatorBase) and captured.torch.get(node, "x")
    ]
    return Island(fx.GraphModule(builder.constants, builder.graph), builder.inputs, outputs, listed)


class _Builder:
    def __init__(
        self, captured: Captured, nodes: Sequence[fx.Node], inside: Collection[int], entered: Collection[int]
    ) -> None:
        self.captured, self.members, self.inside = captured, set(nodes), set(inside)
        self.entered = {captured.entered[v]: v for v in entered if v in captured.entered}
        self.graph = fx.Graph()
        self.constants: dict[str, Any] = {}
        self.inputs: list[Key] = []
        self.placed: dict[fx.Node, Any] = {}
        self.placeholders: dict[Key, fx.Node] = {}
        self.batch = self.graph.placeholder("batch")
        self.first = self.batch  # placeholders come before everything else

    def place(self, node: fx.Node) -> Any:
        """A node of the new graph, or a plain value, for a traced node."""
        if node not in self.placed:
            self.placed[node] = self._built(node)
        return self.placed[node]

    def _built(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return self._attribute(self.captured.traced.module.get_submodule(str(node.target)))
        captured = self.captured.outside(node)
        if isinstance(captured, Size) and str(node.target) == "aten.sym_size.int":
            each = captured.of(1)
            return self.batch if each == 1 else self.graph.call_function(operator.mul, (self.batch, each))
        if node in self.members or isinstance(captured, Size):
            return self.graph.node_copy(node, self.place)
        if isinstance(captured, Foreign):
            return self._left(node) if node in self.entered else self._input(node.name)
        if isinstance(captured, Ref) or node in self.captured.moved:
            ordered = in_order(captured) if isinstance(captured, Ref) and captured.value not in self.inside else None
            if ordered is None:  # torch runs the module's own view operators
                return self.graph.node_copy(node, self.place)
            return self._view(self._input(captured.value), *ordered)
        return self._literal(captured)

    def _input(self, key: Key) -> fx.Node:
        if key not in self.placeholders:
            with self.graph.inserting_after(self.first):
                self.first = self.placeholders[key] = self.graph.placeholder(f"input{len(self.inputs)}")
            self.inputs.append(key)
        return self.placeholders[key]

    def _view(self, value: fx.Node, per_image: Ref, split: int | None) -> fx.Node:
        """Rearrange a value of the graph, (batch, ...), to the shape of the traced node."""
        axis, local = per_image.batch_axis(), per_image.local().shape
        node = value
        if local != self.captured.graph.shapes[per_image.value]:
            node = self.graph.call_function(_aten.reshape.default, (node, [self.batch, *local]))
        if axis:
            node = self.graph.call_function(_aten.movedim.int, (node, 0, axis))
        if split is not None:
            node = self.graph.call_function(_aten.flatten.using_ints, (node, split, split + 1))
        return node

    def _left(self, source: fx.Node) -> fx.Node:
        """Undo `_entering`: from (batch, ...) for the kernels back to the tensor that torch had."""
        node = self._input(self.entered[source])
        axis, each = batch_axis(self.captured.traced, source.meta["val"])
        if axis:
            node = self.graph.call_function(_aten.movedim.int, (node, 0, axis))
        return node if each == 1 else self.graph.call_function(_aten.flatten.using_ints, (node, axis, axis + 1))

    def _literal(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._attribute(value)
        return type(value)(self._literal(h) for h in value) if isinstance(value, (list, tuple)) else value

    def _attribute(self, value: Any) -> fx.Node:
        name = f"constant{len(self.constants)}"
        self.constants[name] = value
        return self.graph.get_attr(name)

    def output(self, keys: Sequence[Key]) -> None:
        named = {node.name: node for node in self.placed}
        self.graph.output([self._entering(k) if isinstance(k, int) else self.placed[named[k]] for k in keys])

    def _entering(self, value: int) -> fx.Node:
        """Rearrange a tensor of torch to (batch, ...) for the kernels."""
        source = self.captured.entered[value]
        node = self.placed[source]
        axis, each = batch_axis(self.captured.traced, source.meta["val"])
        if each > 1:
            node = self.graph.call_function(_aten.unflatten.int, (node, axis, [self.batch, each]))
        if axis:
            node = self.graph.call_function(_aten.movedim.int, (node, axis, 0))
        return self.graph.call_function(_aten.contiguous.default, (node,))
