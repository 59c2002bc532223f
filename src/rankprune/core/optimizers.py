"""What the core needs to know about optimizers: wrappers, owners of weights, state, zeros, averaging."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from .layer import PrunableLayer


def unwrap(optimizer: Any) -> Optimizer:
    """The torch optimizer inside a wrapper such as Accelerate's, or inside SAM, which steps its base optimizer.

    Args:
        optimizer: An optimizer, or a wrapper around one.
    """
    while (inner := _inside(optimizer)) is not None:
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not a torch optimizer: pass the one whose step() is called")
    if isinstance(optimizer, LBFGS):
        raise ValueError("LBFGS evaluates the loss many times a step and is not supported: use SGD, Adam or another")
    return optimizer


def _inside(optimizer: Any) -> Optimizer | None:
    candidates = (getattr(optimizer, name, None) for name in ("optimizer", "base_optimizer"))
    return next((inner for inner in candidates if isinstance(inner, Optimizer)), None)


def assign(layers: Sequence[PrunableLayer], optimizers: Sequence[Optimizer]) -> None:
    """Give each layer the optimizer that steps it.

    Args:
        layers: The layers.
        optimizers: The attached optimizers.

    Raises:
        ValueError: A weight is in no optimizer, or in two.
    """
    for layer in layers:
        owners = [
            (optimizer, index)
            for optimizer in optimizers
            for index, group in enumerate(optimizer.param_groups)
            if any(layer.parameter is p for p in group["params"])
        ]
        if len(owners) != 1:
            many = "no optimizer" if not owners else f"{len(owners)} optimizers"
            way_out = "add it, or leave it out with dense=" if not owners else "give it to one of them"
            raise ValueError(f"{layer.name} is in {many}: {way_out}")
        layer.optimizer, layer.param_group = owners[0]


def disown_state(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Clone the state tensors: `load_state_dict` aliases those of the checkpoint, which must not be written to.

    Args:
        optimizer: The optimizer.
        parameters: The parameters whose state to copy.
    """
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[key] = value.clone()


def similar(optimizer: Optimizer, parameter: nn.Parameter) -> Optimizer:
    """A new optimizer of the same class, with the same defaults, for one parameter.

    Args:
        optimizer: The optimizer to take class and defaults from.
        parameter: What the new one optimizes.
    """
    known = inspect.signature(type(optimizer).__init__).parameters
    any_name = any(p.kind == p.VAR_KEYWORD for p in known.values())
    return type(optimizer)([parameter], **{k: v for k, v in optimizer.defaults.items() if k in known or any_name})


def keeps_zeros(optimizer: Optimizer) -> bool:
    """Whether a weight with value, state and gradient 0 stays exactly 0 under this optimizer; found by a trial run.

    True for SGD and the Adam family; not for Muon, whose update mixes the entries of a matrix.

    Args:
        optimizer: The optimizer.
    """
    parameter = nn.Parameter(torch.linspace(-1.0, 1.0, 36).reshape(6, 6))
    zeros = torch.sin(torch.arange(36.0) ** 2).reshape(6, 6) > 0.3  # no whole row or column: Muon keeps those
    try:
        trial = similar(optimizer, parameter)
        for group in optimizer.param_groups:
            trial.state.clear()
            trial.param_groups[0].update({k: v for k, v in group.items() if k not in ("params", "lr", "capturable")})
            trial.param_groups[0].update(lr=0.01, capturable=False)  # the real rate may be 0 in a warm-up
            for i in range(3):
                with torch.no_grad():
                    parameter.masked_fill_(zeros, 0.0)
                parameter.grad = torch.sin(torch.arange(36.0).reshape(6, 6) + i).masked_fill(zeros, 0.0)
                trial.step()
                state = [v for v in trial.state[parameter].values() if isinstance(v, Tensor) and v.shape == zeros.shape]
                if any(bool(t[zeros].count_nonzero()) for t in (parameter, *state)):
                    return False
    except Exception:  # an optimizer that cannot be tried is treated as one that does not keep zeros
        return False
    return True


def averages(optimizer: Optimizer) -> bool:
    """Whether `optimizer.eval()` and `train()` move the weights between the point of training and an average.

    Args:
        optimizer: The optimizer.
    """
    switches = callable(getattr(optimizer, "eval", None)) and callable(getattr(optimizer, "train", None))
    return switches and any("train_mode" in group for group in optimizer.param_groups)


def shows_average(optimizer: Optimizer) -> bool:
    """Whether the parameters hold the average now, as they do after `optimizer.eval()`.

    Args:
        optimizer: An optimizer that averages.
    """
    return not any(group.get("train_mode") for group in optimizer.param_groups)


class SwitchHook:
    """Makes `eval()` and `train()` of a schedule-free optimizer move the latents instead of the effective weights."""

    def __init__(self, optimizer: Optimizer, latents: Callable[[], AbstractContextManager[None]]) -> None:
        self.optimizer: Any = optimizer
        for name in ("eval", "train"):
            self._wrap(name, getattr(optimizer, name), latents)

    def _wrap(self, name: str, move: Callable[..., Any], latents: Callable[[], AbstractContextManager[None]]) -> None:
        def switched(*args: Any, **kwargs: Any) -> Any:
            with latents():
                return move(*args, **kwargs)

        setattr(self.optimizer, name, switched)

    def remove(self) -> None:
        """Restore the optimizer's own `eval` and `train`."""
        del self.optimizer.eval, self.optimizer.train  # the instance attributes; those of the class remain
