"""How a module is called: any tensors in any structure, as a flat list and a signature that programs are kept by."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


@dataclass(frozen=True)
class Signature:
    """What a program is made for: the structure of the call and every tensor's type and shape, but not the batch size.

    `kinds` has for each tensor (dtype, shape), the batch as None; for any other leaf the value itself.
    """

    structure: str
    kinds: tuple[Any, ...]

    def __str__(self) -> str:
        return ", ".join(_kind_text(kind) for kind in self.kinds)

    def takes(self, call: Call) -> bool:
        """Whether a call is of this signature if its batch size is told apart from fixed sizes that equal it."""
        if self.structure != call.signature.structure:
            return False
        return all(
            mine == kind or (_is_tensor(kind) and mine == (leaf.dtype, tuple(leaf.shape)))
            for mine, kind, leaf in zip(self.kinds, call.signature.kinds, call.leaves)
        )


@dataclass(frozen=True)
class Call:
    """One call taken apart: `tensors` alone change between calls of one signature."""

    signature: Signature
    tensors: list[Tensor]
    leaves: list[Any]
    spec: Any
    batch: int

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the module with other tensors in the place of these."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return tuple(args), dict(kwargs)

    def batched(self) -> list[bool]:
        """Which tensors have the batch in front."""
        return [kind[1][:1] == (None,) for kind in self.signature.kinds if _is_tensor(kind)]

    def resized(self, batch: int) -> Call:
        """The same call with so many rows of the batch, repeated from the start where there are not enough."""
        rows = torch.arange(batch) % self.batch
        tensors = [t[rows] if b else t for t, b in zip(self.tensors, self.batched())]
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        return Call(self.signature, tensors, leaves, self.spec, batch)


def of_example(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A tensor is the only argument, a tuple or list all the positional ones, a mapping the keyword ones."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example), {}) if isinstance(example, (tuple, list)) else ((example,), {})


_signatures: weakref.WeakKeyDictionary[nn.Module, inspect.Signature] = weakref.WeakKeyDictionary()


def bind(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments given by name or by place are the same call."""
    try:
        if module not in _signatures:
            _signatures[module] = inspect.signature(module.forward)
        bound = _signatures[module].bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(f"{type(module).__name__} does not take these arguments: {error}") from None
    return bound.args, bound.kwargs


def take_apart(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Raises a ValueError where a leaf is neither a dense tensor on the CPU nor a plain value."""
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            _need_dense(leaf)
        elif not isinstance(leaf, PLAIN):
            raise ValueError(
                f"the engine takes tensors, plain values, and tuples, lists and dicts of them, not a "
                f"{type(leaf).__name__}: convert it first"
            )
    first = next((t for t in tensors if t.dim()), None)
    if first is None:
        raise ValueError("the engine needs an input tensor (batch, ...), and there is none among the arguments")
    batch = int(first.shape[0])
    if any(t.numel() == 0 for t in tensors):
        shape = next(tuple(t.shape) for t in tensors if t.numel() == 0)
        raise ValueError(f"an input of shape {shape} has no images: give a batch of one or more")
    kinds = tuple(_kind(leaf, batch) for leaf in leaves)
    return Call(Signature(str(spec), kinds), tensors, leaves, spec, batch)


def unwrap(module: Any) -> nn.Module:
    """The module inside DataParallel, DistributedDataParallel and torch.compile."""
    while True:
        if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            module = module.module
        elif isinstance(getattr(module, "_orig_mod", None), nn.Module):
            module = module._orig_mod
        else:
            return module


def _kind(leaf: Any, batch: int) -> Any:
    if not isinstance(leaf, Tensor):
        return (type(leaf), leaf)
    shape = tuple(leaf.shape)
    return leaf.dtype, (None, *shape[1:]) if shape[:1] == (batch,) else shape


def _is_tensor(kind: Any) -> bool:
    return isinstance(kind[0], torch.dtype)


def _kind_text(kind: Any) -> str:
    if not _is_tensor(kind):
        return repr(kind[1])
    sizes = ", ".join("batch" if n is None else str(n) for n in kind[1])
    return f"{str(kind[0]).removeprefix('torch.')} ({sizes})"


def _need_dense(tensor: Tensor) -> None:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        kind = f"{tensor.dtype} {str(tensor.layout).removeprefix('torch.')}"
        raise ValueError(f"the engine takes dense tensors on the CPU, not {kind} on {tensor.device}: convert it first")
