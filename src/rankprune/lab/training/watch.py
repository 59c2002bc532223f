"""Those who look on while a run goes: a progress bar, TensorBoard, a log."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankprune.lab.recipes.schema import Recipe


class Watcher:
    """Each method is optional."""

    def begin(self, recipe: Recipe, folder: Path, step: int, total_steps: int) -> None:
        """A run starts, or goes on at `step`."""

    def step(self, step: int) -> None:
        """An optimizer step has been taken."""

    def epoch(self, line: dict[str, Any]) -> None:
        """An epoch is over; `line` is what goes into metrics.jsonl."""

    def message(self, text: str) -> None:
        """Something a person should know."""

    def end(self) -> None:
        """The run is over, in whatever way."""


class Several(Watcher):
    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self.watchers = watchers

    def begin(self, recipe: Recipe, folder: Path, step: int, total_steps: int) -> None:
        for watcher in self.watchers:
            watcher.begin(recipe, folder, step, total_steps)

    def step(self, step: int) -> None:
        for watcher in self.watchers:
            watcher.step(step)

    def epoch(self, line: dict[str, Any]) -> None:
        for watcher in self.watchers:
            watcher.epoch(line)

    def message(self, text: str) -> None:
        for watcher in self.watchers:
            watcher.message(text)

    def end(self) -> None:
        for watcher in self.watchers:
            watcher.end()


class TensorBoard(Watcher):
    """Scalars by optimizer step in `tensorboard/` of the run folder, when the library is there."""

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
