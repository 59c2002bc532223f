"""Progress in words: how many of how many, and about how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable

Say = Callable[[str], None]


def silent(text: str) -> None:
    """Say nothing; the default of functions that report progress."""


def duration(seconds: float) -> str:
    """A time as a person would say it: 8 s, 2 min 05 s, 3 h 20 min."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Steps:
    """Announces the steps of a piece of work: "2 of 5: timing torch (about 8 s left)".

    Args:
        total: How many steps there are.
        say: Receives each sentence.
    """

    def __init__(self, total: int, say: Say = silent) -> None:
        self.total, self.say = total, say
        self._began, self._count = time.monotonic(), 0

    def next(self, text: str) -> None:
        """Announce the next step."""
        left = f" ({self.left()})" if self._count else ""
        self._count += 1
        self.say(f"{self._count} of {self.total}: {text}{left}")

    def left(self, done: int | None = None) -> str:
        """About how long the rest will take, by the mean of what is done."""
        done = self._count if done is None else done
        rest = (time.monotonic() - self._began) / max(done, 1) * (self.total - done)
        return f"about {duration(rest)} left"
