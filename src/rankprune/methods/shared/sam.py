"""The two evaluations of a SAM step: at the weights, and at the point that the first gradient leads to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rankprune.core.method import Group


def evaluate_twice(group: Group, closure: Callable[[], Any], climb: Callable[[], None]) -> Any:
    """Run the closure, move the weights by `climb()`, run it again for the gradients, and move the weights back.

    Returns what the first run returned. Both runs use the same random numbers, buffers (BatchNorm's statistics) stay as
    the first run leaves them, and gradients that were accumulated before count in both.

    Args:
        group: The layers that the method works on.
        closure: What `optimizer.step` was given.
        climb: Moves the weights to where the gradient is taken.
    """
    model = group.model
    assert model is not None
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    parameters = [p for optimizer in group.optimizers for part in optimizer.param_groups for p in part["params"]]
    earlier = [None if p.grad is None else p.grad.clone() for p in parameters]
    with torch.random.fork_rng(devices):
        result = closure()
    with torch.no_grad():
        weights = [(layer.weight, layer.weight.clone()) for layer in group.layers]
        buffers = [(b, b.clone()) for b in model.buffers()]
        climb()
    for parameter, grad in zip(parameters, earlier):
        parameter.grad = grad
    try:
        closure()
    finally:
        with torch.no_grad():
            for tensor, before in (*weights, *buffers):
                tensor.copy_(before)
    return result
