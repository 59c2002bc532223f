"""One run of a sweep as a process: its recipe comes in on stdin, what happens goes out on stdout as JSON lines."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from rankprune.lab.recipes.load import check, to_dict
from rankprune.lab.recipes.schema import Recipe
from rankprune.lab.training.run import train
from rankprune.lab.training.watch import Watcher

_PAUSE = 0.5  # seconds between two words about steps


def work(order: dict[str, Any], watcher: Watcher | None = None) -> dict[str, Any]:
    """Train, or go on with, the recipe of an order; its outcome or its failure as plain values."""
    try:
        outcome = train(check(order["recipe"]), order["out"], resume=True, watcher=watcher)
    except Exception as error:  # whatever it is, the other runs go on
        known = hasattr(error, "exit_code") or isinstance(error, (ValueError, OSError, ImportError))
        text = str(error) if known else f"{type(error).__name__}: {error}"
        return {"failure": text, "code": getattr(error, "exit_code", 1)}
    return {"folder": str(outcome.folder), "result": outcome.result, "found": outcome.found}


def order_of(recipe: Recipe, out: str | Path) -> dict[str, Any]:
    return {"recipe": to_dict(recipe), "out": str(Path(out).absolute())}


class Speaker(Watcher):
    """Tells the parent; when nobody listens any more, asks its own run to save and stop."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self._spoke = stream, 0.0

    def begin(self, recipe: Recipe, folder: Path, step: int, total_steps: int) -> None:
        self.say("begin", str(folder), step, total_steps)

    def step(self, step: int) -> None:
        if time.monotonic() - self._spoke > _PAUSE:
            self.say("step", step)

    def epoch(self, line: dict[str, Any]) -> None:
        self.say("epoch", line)

    def message(self, text: str) -> None:
        self.say("message", text)

    def end(self) -> None:
        self.say("end")

    def say(self, event: str, *values: Any) -> None:
        self._spoke = time.monotonic()
        try:
            print(json.dumps([event, *values]), file=self.stream, flush=True)
        except BrokenPipeError:
            self.stream = open(os.devnull, "w")  # noqa: SIM115  (until the process ends)
            os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    # What libraries print must not come between our lines.
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    speaker = Speaker(stream)
    speaker.say("done", work(json.load(sys.stdin), speaker))


if __name__ == "__main__":
    main()
