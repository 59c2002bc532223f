"""Extra passes through the model during training, without side effects on gradients, buffers, modes and generators."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from rankprune.core.layer import seeded
from rankprune.core.method import Group


def refuse_shards(group: Group) -> None:
    """Raise if a weight is sharded: methods that run passes of their own need whole weights.

    Args:
        group: The layers that the method works on.

    Raises:
        ValueError: One of them is sharded.
    """
    if any(layer.shards for layer in group.layers):
        name = group.method.info.name
        raise ValueError(
            f"{name} differentiates the loss by itself, which sharded weights do not allow: use DDP, or prune with "
            f"rankprune.prune before fully_shard and attach 'static'"
        )


@contextmanager
def probing(group: Group, training: bool) -> Iterator[nn.Module]:
    """The unwrapped model, in train or eval mode, with gradients enabled and random numbers keyed by (seed, step).

    Inside, use `torch.autograd.grad`: it neither changes `p.grad` nor runs gradient hooks.

    Args:
        group: The layers that the method works on.
        training: Whether the model is in training mode.
    """
    model = _unwrapped(group)
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(m, n, b, b.clone()) for m in model.modules() for n, b in m._buffers.items() if b is not None]
    python_state, numpy_state = random.getstate(), np.random.get_state()
    loader = getattr(group.data, "generator", None)
    loader_state = loader.get_state() if isinstance(loader, torch.Generator) else None
    key = seeded(group.seed, group.step, "probe").initial_seed()
    try:
        # The fused attention kernels have no second derivative, nor a batched first one.
        with torch.random.fork_rng(devices), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            torch.manual_seed(key)
            random.seed(key)
            np.random.seed(key % 2**32)
            if isinstance(loader, torch.Generator):
                loader.manual_seed(key)
            model.train(training)
            yield model
    finally:
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for module, name, buffer, values in buffers:
                module._buffers[name] = buffer.copy_(values)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if isinstance(loader, torch.Generator) and loader_state is not None:
            loader.set_state(loader_state)


def _unwrapped(group: Group) -> nn.Module:
    """The model without DDP (whose reducer must not see these passes) and without torch.compile."""
    model: Any = group.model
    while isinstance(model, DistributedDataParallel) or hasattr(model, "_orig_mod"):
        model = model.module if isinstance(model, DistributedDataParallel) else model._orig_mod
    assert isinstance(model, nn.Module)
    return model


def batches(group: Group, count: int | None = None) -> Iterator[tuple[Any, Any]]:
    """The first `count` batches of the data, or all, on the model's device.

    Args:
        group: The layers that the method works on, with their data.
        count: How many batches; None: all.
    """
    assert group.data is not None
    device = group.layers[0].weight.device
    number = 0
    for number, batch in enumerate(group.data, 1):
        inputs, targets = (part.to(device) if isinstance(part, Tensor) else part for part in batch)
        yield inputs, targets
        if number == count:
            break
    if not number:
        name = group.method.info.name
        raise ValueError(f"data gave {name} no batch: pass a list or a loader that can be gone through again")


def gradients(loss: Tensor, group: Group, create_graph: bool = False) -> tuple[Tensor, ...]:
    """The gradients of the loss with respect to the group's weights; zeros for a weight that takes no part.

    Args:
        loss: The loss.
        group: The layers that the method works on.
        create_graph: Whether the gradients will be differentiated.
    """
    weights = [layer.parameter for layer in group.layers]
    return torch.autograd.grad(loss, weights, create_graph=create_graph, allow_unused=True, materialize_grads=True)


def average_over_ranks(group: Group, tensors: Sequence[Tensor]) -> None:
    """Average over the processes of DDP, in place, so that all ranks choose the same masks although their data differ.

    Args:
        group: The layers that the method works on.
        tensors: What to average.
    """
    model = group.model
    if not isinstance(model, DistributedDataParallel):
        return
    for tensor in tensors:
        dist.all_reduce(tensor, group=model.process_group)
        tensor /= dist.get_world_size(model.process_group)
