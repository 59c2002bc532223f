"""Accelerate: `sp = attach(accelerator, model, optimizer, "rpg", sparsity=0.98, total_steps=T)`."""

from __future__ import annotations

from typing import Any

from torch import nn

from rankprune._util import need
from rankprune.core import sparsifier as core

from .state import metrics, restore, save

need("accelerate", "accelerate", "The hooks for Accelerate")

from accelerate import Accelerator  # noqa: E402


def attach(
    accelerator: Accelerator, model: nn.Module, optimizer: Any, method: Any, **options: Any
) -> core.Sparsifier:
    """Call `rankprune.attach`, and include its state in the accelerator's `save_state` and `load_state`.

    The state is saved by hooks and not by `register_for_checkpointing`, which unpickles what it loads.

    Args:
        accelerator: The accelerator.
        model: The model that `prepare` returned.
        optimizer: The optimizer that `prepare` returned.
        method: As for `rankprune.attach`.
        **options: Other arguments of `rankprune.attach`.

    Returns:
        The sparsifier.
    """
    sparsifier = core.attach(model, optimizer, method, **options)

    def on_save(models: Any, weights: Any, folder: str) -> None:
        save(sparsifier, folder, accelerator.is_main_process)

    def on_load(models: Any, folder: str) -> None:
        restore(sparsifier, folder)

    accelerator.register_save_state_pre_hook(on_save)
    accelerator.register_load_state_pre_hook(on_load)
    return sparsifier


def log(accelerator: Accelerator, sparsifier: core.Sparsifier, step: int | None = None) -> None:
    """Log target and actual sparsity to the accelerator's trackers. Every rank must call it, to count sharded masks.

    Args:
        accelerator: The accelerator.
        sparsifier: The sparsifier.
        step: The step to log at; by default the sparsifier's.
    """
    accelerator.log(metrics(sparsifier), step=sparsifier.step if step is None else step)
