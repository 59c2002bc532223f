"""Optimizers that show another point while a model is evaluated (schedule-free): their latents follow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch.optim import Optimizer


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
    """Puts the latents in the weights' place while `eval()` or `train()` moves them; `remove` takes it off."""

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
        """Give the optimizer its own `train` and `eval` back."""
        del self.optimizer.eval, self.optimizer.train  # those of the class are there again
