"""Calls of a module: its arguments as a flat list of tensors, and a signature by which programs are cached."""

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
    """What a program is compiled for: the structure of the call, and each tensor's type and shape without the batch.

    Attributes:
        structure: The nesting of the arguments.
        kinds: (dtype, shape) of each tensor, with None for the batch; (type, value) of any other leaf.
    """

    structure: str
    kinds: tuple[Any, ...]

    def __str__(self) -> str:
        return ", ".join(_kind_text(kind) for kind in self.kinds)

    def takes(self, call: Call) -> bool:
        """Whether a call fits, even if a fixed size of a tensor happens to equal the call's batch size.

        Args:
            call: The call.

        Returns:
            True if it fits.
        """
        if self.structure != call.signature.structure:
            return False
        return all(
            expected == kind or (_is_tensor(kind) and expected == (leaf.dtype, tuple(leaf.shape)))
            for expected, kind, leaf in zip(self.kinds, call.signature.kinds, call.leaves)
        )


@dataclass(frozen=True)
class Call:
    """The arguments of a call; between calls of one signature only `tensors` differ.

    Attributes:
        signature: Its signature.
        tensors: The tensors, in order.
        leaves: All leaves of the arguments, in order.
        spec: The nesting of the arguments.
        batch: The batch size.
    """

    signature: Signature
    tensors: list[Tensor]
    leaves: list[Any]
    spec: Any
    batch: int

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the module with other tensors.

        Args:
            tensors: The tensors.

        Returns:
            Positional and keyword arguments.
        """
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return tuple(args), dict(kwargs)

    def batched(self) -> list[bool]:
        """Return which tensors have the batch as their first dimension."""
        return [kind[1][:1] == (None,) for kind in self.signature.kinds if _is_tensor(kind)]

    def resized(self, batch: int) -> Call:
        """Return the same call with another batch size; images are repeated from the start if there are too few.

        Args:
            batch: The batch size.

        Returns:
            The call.
        """
        rows = torch.arange(batch) % self.batch
        tensors = [t[rows] if b else t for t, b in zip(self.tensors, self.batched())]
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        return Call(self.signature, tensors, leaves, self.spec, batch)


def of_example(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Interpret an example as arguments.

    Args:
        example: A tensor (the only argument), a tuple or list of positional arguments, or a mapping of keyword
            arguments.

    Returns:
        Positional and keyword arguments.
    """
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example), {}) if isinstance(example, (tuple, list)) else ((example,), {})


_signatures: weakref.WeakKeyDictionary[nn.Module, inspect.Signature] = weakref.WeakKeyDictionary()


def bind(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Normalize arguments, so that an argument given by name or by position is the same call.

    Args:
        module: The module.
        args: Positional arguments.
        kwargs: Keyword arguments.

    Returns:
        Positional and keyword arguments.

    Raises:
        ValueError: The module's `forward` does not accept them.
    """
    try:
        if module not in _signatures:
            _signatures[module] = inspect.signature(module.forward)
        bound = _signatures[module].bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(f"{type(module).__name__} does not take these arguments: {error}") from None
    return bound.args, bound.kwargs


def take_apart(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Flatten arguments to a call.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.

    Returns:
        The call.

    Raises:
        ValueError: A leaf is neither a dense tensor on the CPU nor a plain value, or there is no batch.
    """
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
    """Return the module inside DataParallel, DistributedDataParallel and torch.compile.

    Args:
        module: The module.

    Returns:
        The inner module.
    """
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
