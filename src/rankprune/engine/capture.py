"""Writes a torch module down as a graph, through torch.export; what is unknown stays torch's, as an island."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from . import operators
from .attention import join_attention
from .graph import Graph, Node, Unsupported
from .inline import inline
from .refs import IMAGES, Ref, Size, settle, whole

_WAY_OUT = "compile a part of the module that does without it"


@dataclass
class Captured:
    """The graph, what its islands call, and how the module gives its result back."""

    graph: Graph
    islands: dict[int, Callable[..., Any]]  # by output value: (batch size, input tensors) -> tensor
    spec: Any  # of the module's output


@dataclass
class Capture:
    """State while the exported nodes are followed."""

    graph: Graph = field(default_factory=Graph)
    islands: dict[int, Callable[..., Any]] = field(default_factory=dict)
    env: dict[fx.Node, Any] = field(default_factory=dict)
    batch: Any = None  # the symbol of the batch size
    owned: dict[int | None, str] = field(default_factory=dict)  # names of the module's own tensors, by their memory

    def get(self, argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda n: self.env[n])


def capture(module: nn.Module, example: Tensor) -> Captured:
    """`example` is a batch of any size; the graph is of one image's share, for any batch."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"compile needs a torch.nn.Module, not a {type(module).__name__}: put it into one")
    if module.training:
        raise ValueError("compile needs the model in evaluation mode: call model.eval() first")
    need_dense(example, "compile needs as example")
    if example.dim() < 2 or not example.numel():
        raise ValueError(f"compile needs an example of one image or more, (batch, ...), not {tuple(example.shape)}")
    two = torch.cat([example[:1], example[:1]])
    batch = torch.export.Dim("batch", min=2, max=65536)
    try:
        with torch.no_grad():
            exported = torch.export.export(module, (two,), dynamic_shapes=({0: batch},), strict=False)
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or f"{type(error).__name__} without a word"
        raise ValueError(
            f"torch.export cannot follow {type(module).__name__} with a free batch size: {reason}"
        ) from error
    return _follow(exported)


def need_dense(tensor: Any, who: str) -> None:
    """Raises a ValueError that begins with `who` unless it is what the engine runs on."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{who} one float32 tensor on the CPU, not a {type(tensor).__name__}")
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        kind = f"{tensor.dtype} {str(tensor.layout).removeprefix('torch.')}"
        raise ValueError(f"{who} a dense float32 tensor on the CPU, not {kind} on {tensor.device}: convert it first")


def _follow(exported: Any) -> Captured:
    state = Capture()
    signature = exported.graph_signature
    constants = {**exported.state_dict, **exported.constants}
    named = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    inline(exported.graph_module)
    join_attention(exported.graph)
    nodes = list(exported.graph.nodes)
    last = {used: i for i, node in enumerate(nodes) for used in node.all_input_nodes}
    for i, node in enumerate(nodes):
        if node.op == "placeholder":
            if node.name in named:
                state.env[node] = constants[named[node.name]].detach()
                state.owned[_memory(node)] = named[node.name]
            else:
                value = state.graph.value(tuple(node.meta["val"].shape[1:]))
                state.graph.inputs.append(value)
                state.batch = node.meta["val"].shape[0].node.expr
                state.env[node] = whole(state.graph, value)
        elif node.op == "call_function":
            _keep_own(state, node)
            _step(state, node)
            _rebind(state, node, i, last)
        elif node.op == "get_attr":
            user = next(iter(node.users)).target
            raise ValueError(f"compile cannot take {user}: it chooses between graphs as it runs; {_WAY_OUT}")
        elif node.op == "output":
            for out in node.args[0]:
                ref = state.env.get(out) if isinstance(out, fx.Node) else None
                if not isinstance(ref, Ref):
                    raise ValueError("compile needs a module whose outputs are tensors that depend on its input")
                state.graph.outputs.append(_output(state, ref))
    return Captured(state.graph, state.islands, exported.call_spec.out_spec)


def _step(state: Capture, node: fx.Node) -> None:
    args, kwargs = state.get(node.args), state.get(node.kwargs)
    name = str(node.target)
    if name.startswith(("aten.new_zeros", "aten.new_ones", "aten.new_full")):  # of the tensor they take the type only
        args = (torch.empty(0), *args[1:])
    leaves = _leaves((args, kwargs))
    if not any(isinstance(leaf, Ref) for leaf in leaves):
        state.env[node] = _constant(node.target, args, kwargs, leaves)
        return
    if "_assert" in name:
        return
    if name == "aten.sym_size.int":
        state.env[node] = _size(state, node, args[0].view.shape[args[1]])
        return
    if node.target is operator.getitem:
        state.env[node] = args[0][args[1]]
        return
    before = len(state.graph.nodes), len(state.graph.shapes)
    try:
        handler = operators.find(name)
        _follows(node, name, leaves)
        state.env[node] = handler(state.graph, *_now(args), **_now(kwargs))
        for made in state.graph.nodes[before[0] :]:
            made.name = made.name or _module(node)
    except Unsupported:
        # Nothing half-done may stay behind.
        del state.graph.nodes[before[0] :], state.graph.shapes[before[1] :]
        try:
            state.env[node] = _island(state, node, args, kwargs)
        except Unsupported as error:
            raise ValueError(f"compile cannot take {name}: {error}; {_WAY_OUT}") from None


def _follows(node: fx.Node, name: str, leaves: list[Any]) -> None:
    """Raises Unsupported where the graph, followed with two images in float32, would say something else than torch."""
    shown = node.meta.get("val")
    if isinstance(shown, Tensor) and shown.dtype != torch.float32:
        raise Unsupported("a tensor that is not float32")
    if not operators.moves(name) and not all(leaf.steady() for leaf in leaves if isinstance(leaf, Size)):
        raise Unsupported("a number that depends on the batch size")


def _module(node: fx.Node) -> str:
    """The name of the module that called this operator."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return str(stack[-1][0]).removeprefix("L['self'].") if stack else ""


def _constant(target: Any, args: Any, kwargs: Any, leaves: list[Any]) -> Any:
    if any(isinstance(leaf, Size) for leaf in leaves):
        return Size(lambda n: target(*_at(args, n), **_at(kwargs, n)))
    with torch.no_grad():
        return target(*_now(args), **_now(kwargs))


def _size(state: Capture, node: fx.Node, now: int) -> Any:
    each = _each(state, node.meta["val"])
    return now if each is None else Size(lambda n: n * each)


def _each(state: Capture, size: Any) -> int | None:
    """How often an axis of the exported program has each image; None: it does not depend on their number."""
    if not isinstance(size, torch.SymInt):
        return None
    each = size.node.expr / state.batch
    if not each.is_Integer:
        raise Unsupported("a size that is not so many times the batch")
    return int(each)


def _output(state: Capture, ref: Ref) -> int:
    try:
        front = ref.batch_axis() == 0
    except Unsupported:
        front = False
    if not front:
        raise ValueError(
            "compile needs a module whose outputs begin with the batch dimension: transpose or cut them after the call"
        )
    return settle(state.graph, ref)


def _island(state: Capture, node: fx.Node, args: Any, kwargs: Any) -> Ref:
    """Let torch run this node: its inputs are settled, its output becomes a new value."""
    shown = node.meta.get("val")
    if not isinstance(shown, Tensor) or shown.dtype != torch.float32:
        raise Unsupported("its result is not one float32 tensor")
    sizes = [_each(state, n) for n in shown.shape]
    if sizes.count(None) != len(sizes) - 1:
        raise Unsupported("its result has no batch dimension, or several")
    refs = [leaf.apart() for leaf in _leaves((args, kwargs)) if isinstance(leaf, Ref)]
    inputs = [settle(state.graph, ref) for ref, _ in refs]
    axes = [(ref.batch_axis(), split) for ref, split in refs]
    target: Any = node.target
    writes = _writes(node)
    axis, each = next((i, n) for i, n in enumerate(sizes) if n is not None)

    def run(images: int, tensors: list[Tensor]) -> Tensor:
        if writes:  # into copies: others may read the same values
            tensors = [t.clone() for t in tensors]
        moved = [t.movedim(0, place) for t, (place, _) in zip(tensors, axes)]
        given = iter([t if split is None else t.flatten(split, split + 1) for t, (_, split) in zip(moved, axes)])
        filled = _map(
            (args, kwargs), lambda a: next(given) if isinstance(a, Ref) else a.of(images) if isinstance(a, Size) else a
        )
        made: Tensor = target(*filled[0], **filled[1])
        return (made if each == 1 else made.unflatten(axis, (images, each))).movedim(axis, 0)

    shape = [int(n) if times is None else times for n, times in zip(shown.shape, sizes)]
    output = state.graph.value(tuple(shape[:axis] + shape[axis + (each == 1) :]))
    state.graph.nodes.append(Node("island", inputs, output, str(target), {"operator": str(target)}))
    state.islands[output] = run
    made = whole(state.graph, output, axis)
    return Ref(output, made.view.reshape([*shape[:axis], IMAGES * each, *shape[axis + 1 :]]), made.count)


def _writes(node: fx.Node) -> bool:
    """Whether an operator works in place: on its first argument."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.arguments or schema.name == "aten::detach_":
        return False
    first = schema.arguments[0].alias_info
    return first is not None and first.is_write and isinstance(node.args[0], fx.Node)


def _memory(node: Any) -> int | None:
    """What tensors of the exported program share if one is a view of the other; a copy has its own."""
    shown = node.meta.get("val")
    return shown.untyped_storage()._cdata if isinstance(shown, Tensor) else None


def _keep_own(state: Capture, node: fx.Node) -> None:
    """A module that counts its calls, say, is not the same from call to call; nor may capture change it."""
    if _writes(node) and (name := state.owned.get(_memory(node.args[0]))) is not None:
        raise ValueError(
            f"compile cannot take {node.target}: it changes {name}, a tensor of the module's own; compile needs a "
            "module that stays as it is when it is called"
        )


def _rebind(state: Capture, node: fx.Node, step: int, last: dict[fx.Node, int]) -> None:
    """An operator in place changes its first argument for all who look at its memory later."""
    if not _writes(node) or isinstance(state.env[node], Tensor):  # a constant has changed where it lies
        return
    changed = node.args[0]
    assert isinstance(changed, fx.Node)
    old = state.env[changed]
    for other, held in list(state.env.items()):
        if other in (node, changed) or last.get(other, -1) <= step or _memory(other) != _memory(changed):
            continue
        if not (isinstance(held, Ref) and isinstance(old, Ref) and held.same(old)):
            raise ValueError(
                f"compile cannot take {node.target}: it changes a tensor that is read through another view; "
                "write it out of place"
            )
        state.env[other] = state.env[node]
    state.env[changed] = state.env[node]


def _map(tree: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(tree, (list, tuple)):
        return type(tree)(_map(t, function) for t in tree)
    if isinstance(tree, dict):
        return {k: _map(v, function) for k, v in tree.items()}
    return function(tree)


def _leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    _map(tree, found.append)
    return found


def _at(tree: Any, images: int) -> Any:
    return _map(tree, lambda leaf: leaf.of(images) if isinstance(leaf, Size) else leaf)


def _now(tree: Any) -> Any:
    return _at(tree, IMAGES)
