"""Callbacks receive the progress of a run: progress bars, TensorBoard and worker processes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rankprune.lab.recipes.schema import Recipe

# Computes the current values of a run ("loss", "sparsity", ...). Call it only to show them, because it synchronizes the
# device.
Status = Callable[[], dict[str, float]]


class Callback:
    """Base class; each method does nothing unless it is overridden."""

    def begin(self, recipe: Recipe, folder: Path, step: int, total_steps: int) -> None:
        """Called when a run starts or resumes.

        Args:
            recipe: The recipe.
            folder: The run's folder.
            step: The step it starts or resumes at.
            total_steps: Number of optimizer steps.
        """

    def step(self, step: int, status: Status) -> None:
        """Called after each optimizer step.

        Args:
            step: Number of the step, from 1.
            status: Computes the current values.
        """

    def epoch(self, line: dict[str, Any]) -> None:
        """Called after each epoch.

        Args:
            line: The metrics of the epoch, as written to metrics.jsonl.
        """

    def message(self, text: str) -> None:
        """Called with a message for the user.

        Args:
            text: One sentence.
        """

    def end(self) -> None:
        """Called when the run is over, however it ended."""


class CallbackList(Callback):
    """Calls several callbacks in turn.

    Args:
        callbacks: The callbacks.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = callbacks

    def begin(self, recipe: Recipe, folder: Path, step: int, total_steps: int) -> None:
        """See `Callback.begin`.

        Args:
            recipe: The recipe.
            folder: The run's folder.
            step: The step it starts or resumes at.
            total_steps: Number of optimizer steps.
        """
        for callback in self.callbacks:
            callback.begin(recipe, folder, step, total_steps)

    def step(self, step: int, status: Status) -> None:
        """See `Callback.step`.

        Args:
            step: Number of the step, from 1.
            status: Computes the current values.
        """
        for callback in self.callbacks:
            callback.step(step, status)

    def epoch(self, line: dict[str, Any]) -> None:
        """See `Callback.epoch`.

        Args:
            line: The metrics of the epoch.
        """
        for callback in self.callbacks:
            callback.epoch(line)

    def message(self, text: str) -> None:
        """See `Callback.message`.

        Args:
            text: One sentence.
        """
        for callback in self.callbacks:
            callback.message(text)

    def end(self) -> None:
        """See `Callback.end`."""
        for callback in self.callbacks:
            callback.end()


class TensorBoard(Callback):
    """Writes scalars to `tensorboard/` in the run folder, if TensorBoard is installed."""

    def __init__(self) -> None:
        self._writer: Any = None

    def begin(self, recipe: Recipe, folder: Path, step: int, total_steps: int) -> None:
        """Open the log.

        Args:
            recipe: The recipe.
            folder: The run's folder.
            step: The step it starts or resumes at.
            total_steps: Number of optimizer steps.
        """
        try:
            library = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            return
        # A resumed run replaces the steps that it repeats.
        self._writer = library.SummaryWriter(str(folder / "tensorboard"), purge_step=step)

    def epoch(self, line: dict[str, Any]) -> None:
        """Write the metrics of an epoch.

        Args:
            line: The metrics.
        """
        if self._writer is not None:
            for key, value in line.items():
                if isinstance(value, float):
                    self._writer.add_scalar(key, value, line["step"])

    def end(self) -> None:
        """Close the log."""
        if self._writer is not None:
            self._writer.close()
