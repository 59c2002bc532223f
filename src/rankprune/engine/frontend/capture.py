"""Captures a traced module as a graph for the kernels; operators that they do not support are left to torch."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from rankprune.engine.graph.graph import Graph, Unsupported

from . import operators
from .refs import IMAGES, Ref, Size, identity_view, in_order, materialize
from .trace import Traced, batch_axis, reason, repeats

LEFT_OUT = "torch is faster here"


@dataclass(frozen=True)
class Foreign:
    """A value that torch computes, of any type and shape."""

    node: fx.Node


@dataclass(frozen=True)
class Literal:
    """A result that does not depend on the inputs."""

    value: Any


@dataclass
class Captured:
    """A traced module in which every node is a view of a value of the graph, a constant, a number, or left to torch.

    Attributes:
        traced: The traced module.
        graph: The graph for the kernels.
        origins: The traced node that each node of the graph belongs to.
        env: What each traced node became.
        ordered: Views that a gather copies into order, for torch.
        moved: Traced nodes that only rearrange existing values.
        torch: Traced nodes that torch runs, and why.
        entered: Values of the graph that torch computes.
        outputs: The results of the module.
    """

    traced: Traced
    graph: Graph = field(default_factory=Graph)
    origins: list[fx.Node] = field(default_factory=list)
    env: dict[fx.Node, Any] = field(default_factory=dict)
    ordered: dict[fx.Node, Ref] = field(default_factory=dict)
    moved: set[fx.Node] = field(default_factory=set)
    torch: dict[fx.Node, str] = field(default_factory=dict)
    entered: dict[int, fx.Node] = field(default_factory=dict)
    outputs: list[int | fx.Node | Literal] = field(default_factory=list)

    def outside(self, node: fx.Node) -> Any:
        """Return what a node is for torch.

        Args:
            node: A traced node.

        Returns:
            A view of a value, a constant, a number or `Foreign`.
        """
        return self.ordered.get(node, self.env[node])


def capture(traced: Traced, excluded: frozenset[str] = frozenset()) -> Captured:
    """Capture a traced module. The graph is that of one image, for any batch size.

    Args:
        traced: The traced module.
        excluded: Names of nodes that are left to torch.

    Returns:
        The captured module.
    """
    state = Captured(traced)
    for node in list(traced.module.graph.nodes):
        if node.op == "placeholder":
            _placeholder(state, node)
        elif node.op == "call_function":
            _step(state, node, node.name in excluded)
    for out in traced.outputs:
        state.outputs.append(_output(state, out) if isinstance(out, fx.Node) else Literal(out))
    state.graph.outputs = [v for v in state.outputs if isinstance(v, int)]
    return state


def _placeholder(state: Captured, node: fx.Node) -> None:
    if node in state.traced.constants:
        state.env[node] = state.traced.constants[node]
        return
    state.env[node] = Foreign(node)
    shown = node.meta["val"]
    if shown.dtype == torch.float32 and shown.dim() and isinstance(shown.shape[0], torch.SymInt):
        value = state.graph.value(tuple(shown.shape[1:]))
        state.graph.inputs.append(value)
        state.env[node] = identity_view(state.graph, value)


def _step(state: Captured, node: fx.Node, excluded: bool) -> None:
    name = str(node.target)
    if "_assert" in name or "sym_constrain" in name:
        return
    args: Any = fx.node.map_arg(node.args, lambda n: _captured(state, n))
    kwargs: Any = fx.node.map_arg(node.kwargs, lambda n: _captured(state, n))
    if name.startswith(("aten.new_zeros", "aten.new_ones", "aten.new_full")):  # they only use the tensor's dtype
        args = (torch.empty(0, dtype=node.all_input_nodes[0].meta["val"].dtype), *args[1:])
    leaves = _leaves((args, kwargs))
    computed = [leaf for leaf in leaves if isinstance(leaf, (Ref, Foreign))]
    if name == "aten.sym_size.int":
        _size(state, node)
    elif not computed and not _random(node):
        state.env[node] = _constant(node.target, args, kwargs, leaves)
    elif node.target is operator.getitem and not isinstance(args[0], Foreign):
        state.env[node] = args[0][args[1]]
        state.moved.add(node)
    elif excluded:
        _leave(state, node, LEFT_OUT)
    else:
        try:
            _native(state, node, args, kwargs, leaves)
        except Unsupported as error:
            _leave(state, node, str(error))
        except Exception as error:  # a failing handler must not prevent compiling the rest
            _leave(state, node, reason(error))


def _captured(state: Captured, node: fx.Node) -> Any:
    return Foreign(node) if node.op == "get_attr" else state.env[node]


def _random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _native(state: Captured, node: fx.Node, args: Any, kwargs: Any, leaves: list[Any]) -> None:
    graph, name = state.graph, str(node.target)
    before = len(graph.nodes), len(graph.shapes)
    try:
        handler = operators.find(name)
        moves = operators.moves(name)
        if moves and not any(isinstance(leaf, Ref) for leaf in leaves):
            raise Unsupported("")  # a view of a tensor of torch stays with torch
        _follows(node, moves, leaves)
        entered = [_map(a, lambda leaf: _enter(state, leaf)) for a in (args, kwargs)]
        result = handler(graph, *_now(entered[0]), **_now(entered[1]))
        _need_consistent(state, node.meta.get("val"), result)
    except Exception:
        # Remove what the handler has added so far.
        del graph.nodes[before[0] :], graph.shapes[before[1] :]
        state.entered = {v: n for v, n in state.entered.items() if v < before[1]}
        raise
    state.env[node] = result
    if moves and len(graph.nodes) == before[0]:
        state.moved.add(node)
    for part in graph.nodes[before[0] :]:
        part.name = part.name or module_name(node)
        state.origins.append(node)


def _follows(node: fx.Node, moves: bool, leaves: list[Any]) -> None:
    """Raise Unsupported if a graph that is captured with two images in float32 could differ from torch."""
    shown = node.meta.get("val")
    if isinstance(shown, Tensor) and shown.dtype != torch.float32:
        raise Unsupported("a tensor that is not float32")
    if not moves and not all(leaf.is_batch_invariant() for leaf in leaves if isinstance(leaf, Size)):
        raise Unsupported("a number that depends on the batch size")


def _need_consistent(state: Captured, shown: Any, result: Any) -> None:
    """Raise Unsupported unless the result has the exported program's shape and batch axis.

    A view may be right for two images and wrong for three: (tokens · batch) seen as (2, tokens / 2 · batch).
    """
    if isinstance(result, (list, tuple)) and isinstance(shown, (list, tuple)):
        for part, ref in zip(shown, result):
            _need_consistent(state, part, ref)
        return
    if not isinstance(shown, Tensor) or not isinstance(result, Ref):
        return
    each = [repeats(state.traced, n) for n in shown.shape]
    wanted = tuple(int(n) if k is None else IMAGES * k for n, k in zip(shown.shape, each))
    if result.view.shape != wanted:
        raise Unsupported(f"a result of shape {wanted} that came out as {result.view.shape}")
    try:
        per_image, split = result.split_batch_axis()
    except Unsupported:
        return  # an operator that needs a batch axis raises later
    if each[per_image.batch_axis() if split is None else split] is None:
        raise Unsupported("the images of a batch are mixed with one another")


def _enter(state: Captured, leaf: Any) -> Any:
    """Turn a tensor that torch computes into a value of the graph: float32, with a batch dimension."""
    if not isinstance(leaf, Foreign):
        return leaf
    shown = leaf.node.meta.get("val")
    if not isinstance(shown, Tensor) or shown.dtype != torch.float32 or not shown.dim():
        raise Unsupported("an argument that is not a float32 tensor")
    axis, each = batch_axis(state.traced, shown)
    shape = [int(n) if i != axis else each for i, n in enumerate(shown.shape)]
    value = next((v for v, n in state.entered.items() if n is leaf.node), None)
    if value is None:
        value = state.graph.value(tuple(shape[:axis] + shape[axis + (each == 1) :]))
        state.entered[value] = leaf.node
    whole = identity_view(state.graph, value, axis)
    return Ref(value, whole.view.reshape([*shape[:axis], IMAGES * each, *shape[axis + 1 :]]), whole.count)


def _leave(state: Captured, node: fx.Node, why: str) -> None:
    for used in node.all_input_nodes:
        _reach(state, used)
    state.env[node] = Foreign(node)
    state.torch[node] = why


def _reach(state: Captured, node: fx.Node) -> None:
    """Make a node available to torch: as a value in order, or by the module's own views of one."""
    if node.op == "get_attr" or node in state.ordered:
        return
    captured = state.env[node]
    if (isinstance(captured, Size) and str(node.target) != "aten.sym_size.int") or node in state.moved:
        if isinstance(captured, Ref) and in_order(captured):
            return
        for used in node.all_input_nodes:
            _reach(state, used)
    elif isinstance(captured, Ref) and not in_order(captured):
        per_image, _ = captured.split_batch_axis()
        before = len(state.graph.nodes)
        value = materialize(state.graph, per_image)
        state.origins += [node] * (len(state.graph.nodes) - before)
        whole = identity_view(state.graph, value, per_image.batch_axis())
        state.ordered[node] = Ref(value, whole.view.reshape(captured.view.shape), whole.count)


def _constant(target: Any, args: Any, kwargs: Any, leaves: list[Any]) -> Any:
    if any(isinstance(leaf, Size) for leaf in leaves):
        return Size(lambda n: target(*_at(args, n), **_at(kwargs, n)))
    with torch.no_grad():
        return target(*args, **kwargs)


def _size(state: Captured, node: fx.Node) -> None:
    shown = node.meta["val"]
    try:
        each = repeats(state.traced, shown)
    except Unsupported as error:
        _leave(state, node, str(error))
    else:
        state.env[node] = int(shown) if each is None else Size(lambda n: n * each)


def _output(state: Captured, out: fx.Node) -> int | fx.Node | Literal:
    captured = state.env[out]
    if isinstance(captured, Ref):
        try:
            if captured.batch_axis() == 0:
                before = len(state.graph.nodes)
                value = materialize(state.graph, captured)
                state.origins += [out] * (len(state.graph.nodes) - before)
                return value
        except Unsupported:
            pass  # torch rearranges it
        with state.traced.module.graph.inserting_after(out):
            copy = state.traced.module.graph.call_function(torch.ops.aten.clone.default, (out,))
        copy.meta = dict(out.meta)
        _leave(state, copy, "the batch is not in front")
        return copy
    if isinstance(captured, Size):
        _leave(state, out, "")
        return out
    return out if isinstance(captured, Foreign) else Literal(captured)


def module_name(node: fx.Node) -> str:
    """Return the name of the module that called an operator.

    Args:
        node: The traced operator.

    Returns:
        Such as "layer1.0.conv1".
    """
    stack = list(node.meta.get("nn_module_stack", {}).values())
    name = str(stack[-1][0]).removeprefix("L['self'].") if stack else ""
    return name.removeprefix("module").removeprefix(".")


def _map(tree: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(tree, (list, tuple)):
        return type(tree)(_map(t, function) for t in tree)
    if isinstance(tree, dict):
        return {k: _map(v, function) for k, v in tree.items()}
    return function(tree)


def _leaves(tree: Any) -> list[Any]:
    leaves: list[Any] = []
    _map(tree, leaves.append)
    return leaves


def _at(tree: Any, images: int) -> Any:
    return _map(tree, lambda leaf: leaf.of(images) if isinstance(leaf, Size) else leaf)


def _now(tree: Any) -> Any:
    return _at(tree, IMAGES)
