"""Progress bars."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rankprune._util import need
from rankprune.lab.recipes.schema import Recipe
from rankprune.lab.training import Callback, Status

from .output import say


class Bars(Callback):
    """A progress bar a run on a terminal, nothing elsewhere; messages always."""

    def __init__(self, runs: int = 1) -> None:
        self._runs, self._number = runs, 0
        self._progress: Any = None

    def begin(self, recipe: Recipe, folder: Path, step: int, total_steps: int) -> None:
        self._number += 1
        name = recipe.name if self._runs == 1 else f"{recipe.name} ({self._number} of {self._runs})"
        if not sys.stderr.isatty():
            return
        rich = need("rich.progress", "train", "A progress bar")
        columns = (
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TimeElapsedColumn(),
            rich.TimeRemainingColumn(),
            rich.TextColumn("{task.fields[note]}"),
        )
        console = need("rich.console", "train", "A progress bar").Console(stderr=True)
        self._progress = rich.Progress(*columns, console=console)
        self._progress.add_task(name, total=total_steps, completed=step, note="")
        self._progress.start()

    def step(self, step: int, status: Status) -> None:
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=step)

    def epoch(self, line: dict[str, Any]) -> None:
        if self._progress is not None:
            accuracy = line.get("test_top1", line.get("test_box_ap"))
            note = f"epoch {line['epoch']}: {accuracy:.2%} at sparsity {line['sparsity']:.2%}"
            self._progress.update(self._progress.task_ids[0], note=note)

    def message(self, text: str) -> None:
        say(f"rankprune: {text}")

    def end(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
