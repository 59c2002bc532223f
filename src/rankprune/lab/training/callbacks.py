"""What is told about a run while it trains: progress bars, TensorBoard and worker processes are callbacks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rankprune.lab.recipes.schema import Recipe

# Computes the running values of a step ("loss", "sparsity", ...). Called only by those who show them, since it waits
# for the device.
Status = Callable[[], dict[str, float]]


class Callback:
    """Base class; each method does nothing unless it is overridden."""

    def begin(self, recipe: Recipe, folder: Path, step: int, total_steps: int) -> None:
        """Called when a run starts, or resumes at `step`."""

    def step(self, step: int, status: Status) -> None:
        """Called after each optimizer step."""

    def epoch(self, line: dict[str, Any]) -> None:
        """Called after each epoch with the line that goes into metrics.jsonl."""

    def message(self, text: str) -> None:
        """Called with a sentence that a person should read."""

    def end(self) -> None:
        """Called when the run is over, however it ended."""


class CallbackList(Callback):
    """Calls several callbacks in turn."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = callbacks

    def begin(self, recipe: Recipe, folder: Path, step: int, total_steps: int) -> None:
        for callback in self.callbacks:
            callback.begin(recipe, folder, step, total_steps)

    def step(self, step: int, status: Status) -> None:
        for callback in self.callbacks:
            callback.step(step, status)

    def epoch(self, line: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.epoch(line)

    def message(self, text: str) -> None:
        for callback in self.callbacks:
            callback.message(text)

    def end(self) -> None:
        for callback in self.callbacks:
            callback.end()


class TensorBoard(Callback):
    """Scalars by optimizer step in `tensorboard/` of the run folder, where the library is installed."""

    def __init__(self) -> None:
        self._writer: Any = None

    def begin(self, recipe: Recipe, folder: Path, step: int, total_steps: int) -> None:
        try:
            library = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            return
        # Steps after a resume replace those of the run that was cut off.
        self._writer = library.SummaryWriter(str(folder / "tensorboard"), purge_step=step)

    def epoch(self, line: dict[str, Any]) -> None:
        if self._writer is not None:
            for key, value in line.items():
                if isinstance(value, float):
                    self._writer.add_scalar(key, value, line["step"])

    def end(self) -> None:
        if self._writer is not None:
            self._writer.close()
