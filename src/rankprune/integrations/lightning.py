"""Lightning: `Trainer(callbacks=[SparsityCallback("rpg", sparsity=0.98)])`."""

from __future__ import annotations

import math
from typing import Any

from rankprune._util import need
from rankprune.core.sparsifier import Sparsifier, attach

from .state import metrics

need("lightning.pytorch", "lightning", "The Lightning callback")

import lightning.pytorch as pl  # noqa: E402


class SparsityCallback(pl.Callback):
    """Attaches when a fit starts and finalizes when it ends; its state is part of Lightning's checkpoints.

    It logs `sparsity` and `target_sparsity` after each epoch.

    Args:
        method: As for `rankprune.attach`.
        total_steps: Number of optimizer steps; by default the trainer's own estimate.
        **options: Other arguments of `rankprune.attach`.
    """

    def __init__(self, method: Any, *, total_steps: int | None = None, **options: Any) -> None:
        self.method, self.total_steps, self.options = method, total_steps, options
        self.sparsifier: Sparsifier | None = None
        self._fitting = False  # False: `sparsifier`, if any, belongs to an earlier fit
        self._loaded: dict[str, Any] | None = None  # state to restore when the next fit starts

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        steps = trainer.estimated_stepping_batches if self.total_steps is None else self.total_steps
        if not math.isfinite(steps) or steps < 1:
            raise ValueError(f"the trainer expects {steps} steps: set max_steps or max_epochs, or pass total_steps")
        model = trainer.model or pl_module  # wrapped by the strategy: under DDP the ranks share the decompositions
        self.sparsifier = attach(model, list(trainer.optimizers), self.method, total_steps=int(steps), **self.options)
        if self._loaded is not None:  # most strategies restore callbacks before optimizers exist
            self.sparsifier.load_state_dict(self._loaded)
            self._loaded = None
        self._fitting = True

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert self.sparsifier is not None
        pl_module.log_dict(metrics(self.sparsifier))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert self.sparsifier is not None
        self.sparsifier.finalize()
        self._fitting = False

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if self.sparsifier is not None:
            self.sparsifier.detach()  # so that the module can be fitted again
        self._fitting = False

    def state_dict(self) -> dict[str, Any]:
        return {} if self.sparsifier is None else self.sparsifier.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.sparsifier is not None and self._fitting:  # some strategies restore after setup
            self.sparsifier.load_state_dict(state_dict)
        else:
            self._loaded = state_dict
