"""One training run as a process: the order arrives on stdin, events leave on stdout as JSON lines."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from rankprune.lab.progress import warnings_as_messages
from rankprune.lab.recipes.load import check
from rankprune.lab.recipes.schema import Recipe
from rankprune.lab.training.callbacks import Callback, Status
from rankprune.lab.training.run import train
from rankprune.lab.training.smoke import stand_in

from .runner import Reply

_PAUSE = 0.5  # seconds between two events about steps


def work(order: dict[str, Any], callback: Callback | None = None) -> Reply:
    """Train or resume the recipe of an order. Every error becomes a reply.

    Args:
        order: What `Order.to_dict` returned.
        callback: Receives the progress.

    Returns:
        The reply.
    """
    try:
        recipe = check(order["recipe"])
        data = stand_in(recipe) if order["generated_data"] else None
        outcome = train(recipe, order["out"], resume=True, callback=callback, data=data)
    except Exception as error:  # the other runs continue
        known = hasattr(error, "exit_code") or isinstance(error, (ValueError, OSError, ImportError))
        text = str(error) if known else f"{type(error).__name__}: {error}"
        disk = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
        return Reply(failure=text, code=getattr(error, "exit_code", 1), disk=disk)
    return Reply(outcome.folder, outcome.result, outcome.finished_before)


class EventWriter(Callback):
    """Writes events for the parent process. If the parent has died, it asks its own run to save and stop.

    Args:
        stream: Receives one JSON line per event.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self._last = stream, 0.0

    def begin(self, recipe: Recipe, folder: Path, step: int, total_steps: int) -> None:
        """Write a "begin" event.

        Args:
            recipe: The recipe.
            folder: The run's folder.
            step: The step it starts or resumes at.
            total_steps: Number of steps.
        """
        self.write("begin", str(folder), step, total_steps)

    def step(self, step: int, status: Status) -> None:
        """Write a "step" event, at most every half second.

        Args:
            step: Number of the step.
            status: Returns loss, accuracy and sparsity.
        """
        if time.monotonic() - self._last > _PAUSE:
            self.write("step", step, status())

    def epoch(self, line: dict[str, Any]) -> None:
        """Write an "epoch" event.

        Args:
            line: Metrics of the epoch.
        """
        self.write("epoch", line)

    def message(self, text: str) -> None:
        """Write a "message" event.

        Args:
            text: For the user.
        """
        self.write("message", text)

    def end(self) -> None:
        """Write an "end" event."""
        self.write("end")

    def write(self, event: str, *values: Any) -> None:
        """Write an event as a JSON line.

        Args:
            event: Its name.
            *values: Its values.
        """
        self._last = time.monotonic()
        try:
            print(json.dumps([event, *values]), file=self.stream, flush=True)
        except BrokenPipeError:
            self.stream = open(os.devnull, "w")  # noqa: SIM115  (until the process ends)
            os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Read an order from stdin, train it, and write the reply."""
    # Redirect stdout to stderr, so that what libraries print does not mix with the events.
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    writer = EventWriter(stream)
    with warnings_as_messages(writer.message):
        reply = work(json.load(sys.stdin), writer)
    writer.write("done", reply.to_dict())


if __name__ == "__main__":
    main()
