"""Progress of training: a progress bar on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

from rankprune._util import need
from rankprune.lab.progress import duration
from rankprune.lab.recipes.schema import Recipe
from rankprune.lab.training import Callback, Status

from .output import note, say

_EVERY = 5.0  # seconds between two lines


class Bars(Callback):
    """Shows step, loss, accuracy, sparsity and remaining time of one run after another.

    Args:
        runs: Number of runs, for "2 of 3"; 0 if it is not known.
    """

    def __init__(self, runs: int = 1) -> None:
        self._runs, self._number = runs, 0
        self._bar: Any = None
        self._name, self._total, self._first, self._began, self._told = "", 1, 0, 0.0, 0.0

    def begin(self, recipe: Recipe, folder: Path, step: int, total_steps: int) -> None:
        """Start the display of a run.

        Args:
            recipe: The recipe.
            folder: The run's folder.
            step: The step it starts or resumes at.
            total_steps: Number of steps.
        """
        self._number += 1
        self._name = recipe.name if self._runs < 2 else f"{recipe.name} ({self._number} of {self._runs})"
        self._total, self._first = total_steps, step
        self._began = self._told = time.monotonic()
        self._bar = _bar(self._name, step, total_steps) if sys.stderr.isatty() else None
        if self._bar is None and step:
            say(f"{self._name}: resumed at step {step} of {total_steps}")

    def step(self, step: int, status: Status) -> None:
        """Advance the display.

        Args:
            step: Number of the step.
            status: Returns loss, accuracy and sparsity.
        """
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step)
        elif time.monotonic() - self._told >= _EVERY:
            self._told = time.monotonic()
            say(self._line(step, status()))

    def epoch(self, line: dict[str, Any]) -> None:
        """Show the accuracy of an epoch.

        Args:
            line: Metrics of the epoch.
        """
        accuracy = float(line.get("test_top1", line.get("test_box_ap", math.nan)))
        text = f"epoch {line['epoch']}: {100 * accuracy:.2f} % at sparsity {100 * line['sparsity']:.2f} %"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], note=text)

    def message(self, text: str) -> None:
        """Print a message.

        Args:
            text: One sentence.
        """
        note(text)

    def end(self) -> None:
        """Remove the display."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _line(self, step: int, status: dict[str, float]) -> str:
        """`fashion-rpg-98: step 120 of 564, loss 0.51, accuracy 78.20 %, sparsity 61.02 %, 12 s left`."""
        parts = [f"step {step} of {self._total}", f"loss {status['loss']:.3f}"]
        if "accuracy" in status:
            parts.append(f"accuracy {100 * status['accuracy']:.2f} % after the last epoch")
        if "sparsity" in status:
            parts.append(f"sparsity {100 * status['sparsity']:.2f} %")
        if step > self._first:
            per_step = (time.monotonic() - self._began) / (step - self._first)
            rest = (self._total - step) * per_step
            parts.append(f"about {duration(rest)} left")
            if self._runs > self._number:  # assuming that the others take as long
                parts.append(f"{duration(rest + (self._runs - self._number) * self._total * per_step)} for all runs")
        return f"{self._name}: {', '.join(parts)}"


def _bar(name: str, step: int, total_steps: int) -> Any:
    """A running progress bar; None if rich is not installed."""
    try:
        rich = need("rich.progress", "train", "A progress bar")
        console = need("rich.console", "train", "A progress bar").Console(stderr=True)
    except ImportError:
        return None
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
        rich.TextColumn("{task.fields[note]}"),
    )
    bar = rich.Progress(*columns, console=console)
    bar.add_task(name, total=total_steps, completed=step, note="")
    bar.start()
    return bar
