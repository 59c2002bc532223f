"""A model on several processes, replicated (DDP) or sharded (FSDP2), and its full state dict."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from rankprune.lab.data import DataError, DataModule

from .world import World


def share_data(data: DataModule, world: World) -> DataModule:
    """Split each batch equally over the processes, so that training does not depend on their number.

    Args:
        data: A data set opened for one process.
        world: The processes of the run.

    Returns:
        The data set with this rank's part of each batch.

    Raises:
        DataError: The batch size is not a multiple of the number of processes.
    """
    sampling = data.sampling
    if sampling.world_size == world.size:
        return data
    if sampling.batch_size % world.size:
        raise DataError(
            f"data.batch_size={sampling.batch_size} cannot be shared equally by {world.size} processes: "
            "take a multiple of their number."
        )
    shared = copy.copy(data)
    part = sampling.batch_size // world.size
    shared.sampling = replace(sampling, batch_size=part, rank=world.rank, world_size=world.size)
    return shared


def copies(model: nn.Module, world: World) -> nn.Module:
    """Wrap a model in DDP. Its buffers are not synchronized in the forward pass; see `World.share_buffers`.

    Args:
        model: The model.
        world: The processes of the run.

    Returns:
        The wrapped model, or the model itself in a single process.
    """
    if world.size == 1:
        return model
    known = inspect.signature(DistributedDataParallel).parameters
    option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # old name
    return DistributedDataParallel(model, **{option: False})  # type: ignore[arg-type]


def shard(model: nn.Module, world: World, device: torch.device) -> None:
    """Apply FSDP2 in place: each block is a unit of its own, and the remaining layers belong to the root.

    Args:
        model: The model.
        world: The processes of the run.
        device: Device of this process.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world.size,))
    for block in _blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost elements of sequences and lists that have weights: residual blocks, encoder layers, layers."""
    for child in module.children():
        listed = isinstance(module, (nn.Sequential, nn.ModuleList))
        if listed and not isinstance(child, (nn.Sequential, nn.ModuleList)):
            if any(True for _ in child.parameters()):
                yield child
        else:
            yield from _blocks(child)


def syncing(wrapped: nn.Module, now: bool) -> AbstractContextManager[Any]:
    """Decide whether the backward pass within the block averages gradients over the processes.

    Args:
        wrapped: The model as DDP or FSDP2 wraps it.
        now: Average them now; otherwise each process accumulates its own.

    Returns:
        A context manager for the block.
    """
    if isinstance(wrapped, DistributedDataParallel):
        return nullcontext() if now else wrapped.no_sync()
    sharded: Any = wrapped
    if hasattr(sharded, "set_requires_gradient_sync"):
        sharded.set_requires_gradient_sync(now)
    return nullcontext()


def whole(value: Any, keep: bool = True) -> Any:
    """Gather sharded tensors to full tensors, one at a time. All processes must call it.

    Args:
        value: A tensor, or mappings and lists of tensors and other values.
        keep: Keep the gathered tensors, on the CPU; otherwise they become None, to save memory.

    Returns:
        The same structure with full tensors.
    """
    if isinstance(value, Mapping):
        return {key: whole(item, keep) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(whole(item, keep) for item in value)
    if _is_sharded(value):
        full = value.full_tensor()
        return full.cpu() if keep else None
    return value


def load_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a full state dict into a model that may be sharded.

    Args:
        model: The model.
        state: The full state dict.
    """
    like = model.state_dict()
    model.load_state_dict({key: _placed(value, like.get(key)) for key, value in state.items()})


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load a full state dict into an optimizer whose parameters may be sharded.

    Args:
        optimizer: The optimizer.
        state: The full state dict.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    placed = {
        index: {key: _placed(value, parameters[index]) for key, value in entries.items()}
        for index, entries in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": placed})


def _placed(value: Any, like: Any) -> Any:
    if not _is_sharded(like) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def _is_sharded(value: Any) -> bool:
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")
