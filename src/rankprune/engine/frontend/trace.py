"""Traces a module with torch.export, for any batch size, to a graph of functional ATen operators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from rankprune.engine.graph.graph import Unsupported

from .call import Call
from .functional import functional, memory, writes
from .inline import inline
from .masks import float_masks


class CannotFollow(ValueError):
    """torch.export cannot trace the module with a dynamic batch size; torch can still run it."""


@dataclass(frozen=True)
class Traced:
    """A module as a graph of ATen operators.

    Attributes:
        module: The graph.
        inputs: Its tensor inputs, in order.
        constants: The module's own tensors.
        outputs: Nodes, or plain values.
        spec: The nesting of the result.
        batch: The symbol of the batch size.
    """

    module: fx.GraphModule
    inputs: list[fx.Node]
    constants: dict[fx.Node, Tensor]
    outputs: list[Any]
    spec: Any
    batch: Any


class _Result:
    """Separate from the module, whose attributes must not change while it is exported."""

    spec: Any = None


class _Flat(nn.Module):
    """The module with flat lists as arguments and results, so that torch.export does not depend on its signature."""

    def __init__(self, module: nn.Module, call: Call) -> None:
        super().__init__()
        self.module = module
        self.call, self.result = call, _Result()

    def forward(self, tensors: list[Tensor]) -> list[Any]:
        args, kwargs = self.call.arguments(tensors)
        leaves, self.result.spec = pytree.tree_flatten(self.module(*args, **kwargs))
        return leaves


def trace(module: nn.Module, call: Call) -> Traced:
    """Trace a module.

    Args:
        module: The module.
        call: The example.

    Returns:
        The traced module.

    Raises:
        CannotFollow: torch.export cannot trace it with a dynamic batch size.
        SelfChanging: It changes its own tensors.
    """
    flat = _Flat(module, call).eval()
    two = call.resized(2)
    batch = torch.export.Dim("batch", min=2, max=65536)
    shapes = ([{0: batch} if batched else None for batched in call.batched()],)
    try:
        with torch.no_grad(), _eager(), _no_stack_traces():
            exported = torch.export.export(flat, (two.tensors,), dynamic_shapes=shapes, strict=False)
        _need_constant(exported)
        inline(exported.graph_module)
        exported = functional(exported)
        inline(exported.graph_module)
        float_masks(exported.graph_module)
    except SelfChanging:
        raise
    except Exception as error:
        raise CannotFollow(
            f"torch.export cannot follow {type(module).__name__} with a free batch size: {reason(error)}"
        ) from error
    return _traced(exported, flat.result.spec)


class SelfChanging(ValueError):
    """The module changes its own tensors when it is called.

    Args:
        operator: What changes the tensor.
        name: Name of the tensor.
    """

    def __init__(self, operator: str, name: str) -> None:
        super().__init__(
            f"compile cannot be used on {operator}: it changes {name}, a tensor of the module itself, and compile "
            "needs a module that does not change when it is called"
        )


def reason(error: BaseException) -> str:
    """Format an exception as part of a sentence.

    Args:
        error: The exception.

    Returns:
        Its message on one line, or its type.
    """
    return " ".join(str(error).split())[:200] or f"{type(error).__name__} without a message"


def _traced(exported: Any, spec: Any) -> Traced:
    tensors = {**exported.state_dict, **exported.constants}
    names = _own_names(exported)
    inputs: list[fx.Node] = []
    constants: dict[fx.Node, Tensor] = {}
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            if node.name in names:
                constants[node] = tensors[names[node.name]].detach()
            else:
                inputs.append(node)
    outputs = next(n for n in exported.graph.nodes if n.op == "output").args[0]
    symbols = [s for n in inputs for s in getattr(n.meta["val"], "shape", ())[:1] if isinstance(s, torch.SymInt)]
    return Traced(exported.graph_module, inputs, constants, list(outputs), spec, symbols[0].node.expr)


def _own_names(exported: Any) -> dict[str, str]:
    signature = exported.graph_signature
    return {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }


def _need_constant(exported: Any) -> None:
    """Refuse a module that changes from call to call, for example one that counts its calls."""
    for name in exported.graph_signature.buffers_to_mutate.values():
        raise SelfChanging("an assignment", name.removeprefix("module."))
    names = _own_names(exported)
    # A constant that `forward` creates (a lifted one) is new in each call, so it may be changed.
    lifted = exported.graph_signature.inputs_to_lifted_tensor_constants
    owned = {
        memory(n): names[n.name]
        for n in exported.graph.nodes
        if n.op == "placeholder" and n.name in names and n.name not in lifted
    }
    for node in _all_nodes(exported.graph_module):
        if writes(node) and (name := owned.get(memory(node.args[0]))) is not None:  # type: ignore[arg-type]
            raise SelfChanging(str(node.target), name.removeprefix("module."))


def _all_nodes(module: nn.Module) -> Iterator[fx.Node]:
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            yield from part.graph.nodes


@contextlib.contextmanager
def _eager() -> Iterator[None]:
    """Run parts that are wrapped in torch.compile eagerly."""
    stance = getattr(torch.compiler, "set_stance", None)
    if stance is None:
        yield
        return
    with stance("force_eager"):
        yield


@contextlib.contextmanager
def _no_stack_traces() -> Iterator[None]:
    """Do not record for each operator where it was called, which takes a tenth of the time and is not used."""
    config: Any = fx.config
    before = getattr(config, "do_not_emit_stack_traces", None)
    if before is None:  # older versions of torch
        yield
        return
    config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        config.do_not_emit_stack_traces = before


def repeats(traced: Traced, size: Any) -> int | None:
    """Return how many entries an axis has per image.

    Args:
        traced: The traced module.
        size: Size of an axis in the exported program.

    Returns:
        The number; None if the size does not depend on the batch.

    Raises:
        Unsupported: The size is not a multiple of the batch size.
    """
    if not isinstance(size, torch.SymInt):
        return None
    each = size.node.expr / traced.batch
    if not each.is_Integer:
        raise Unsupported("a size that is not so many times the batch")
    return int(each)


def batch_axis(traced: Traced, shown: Any) -> tuple[int, int]:
    """Find the batch axis of a tensor.

    Args:
        traced: The traced module.
        shown: The tensor in the exported program.

    Returns:
        The axis, and its entries per image.

    Raises:
        Unsupported: There is no batch axis, or several.
    """
    sizes = [repeats(traced, n) for n in shown.shape]
    if sizes.count(None) != len(sizes) - 1:
        raise Unsupported("a tensor without a batch dimension, or with several")
    return next((i, n) for i, n in enumerate(sizes) if n is not None)
