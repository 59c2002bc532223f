"""A model over several processes: whole copies (DDP) or shards of every layer (FSDP2), and its state in one piece."""

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
    """The same batches, cut into equal parts: what is trained on does not depend on the number of processes."""
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
    """The model as DDP trains it. Its buffers stay each process's own until they are asked for."""
    if world.size == 1:
        return model
    known = inspect.signature(DistributedDataParallel).parameters
    option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # its older name
    return DistributedDataParallel(model, **{option: False})  # type: ignore[arg-type]


def shard(model: nn.Module, world: World, device: torch.device) -> None:
    """FSDP2 in place: each block gathered by itself when its turn comes, the rest with the root."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world.size,))
    for block in _blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost elements of sequences that hold weights: residual blocks, encoder layers, layers of a chain."""
    for child in module.children():
        listed = isinstance(module, (nn.Sequential, nn.ModuleList))
        if listed and not isinstance(child, (nn.Sequential, nn.ModuleList)):
            if any(True for _ in child.parameters()):
                yield child
        else:
            yield from _blocks(child)


def syncing(wrapped: nn.Module, now: bool) -> AbstractContextManager[Any]:
    """Gradients of all processes are averaged in the backward pass within the block, or (False) add up on each."""
    if isinstance(wrapped, DistributedDataParallel):
        return nullcontext() if now else wrapped.no_sync()
    sharded: Any = wrapped
    if hasattr(sharded, "set_requires_gradient_sync"):
        sharded.set_requires_gradient_sync(now)
    return nullcontext()


def whole(value: Any, keep: bool = True) -> Any:
    """Sharded tensors in one piece on the CPU where `keep`, gone elsewhere; one at a time, by all processes."""
    if isinstance(value, Mapping):
        return {key: whole(item, keep) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(whole(item, keep) for item in value)
    if _is_sharded(value):
        full = value.full_tensor()
        return full.cpu() if keep else None
    return value


def load_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Into a model that may be sharded, from a state in one piece."""
    like = model.state_dict()
    model.load_state_dict({key: _placed(value, like.get(key)) for key, value in state.items()})


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
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
