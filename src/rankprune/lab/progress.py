"""Messages for the user: how many steps are done, about how much time is left, and warnings."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rankprune

Say = Callable[[str], None]


def silent(text: str) -> None:
    """Ignore the text; the default of functions that report progress.

    Args:
        text: The sentence that is not printed.
    """


@contextlib.contextmanager
def warnings_as_messages(say: Say) -> Iterator[None]:
    """Within the block, report warnings of this package as messages, without the path and line of code.

    Args:
        say: Called with each warning.

    Yields:
        Nothing.
    """
    default, package = warnings.showwarning, Path(rankprune.__file__).parent

    def show(message: Any, category: Any, filename: str, *args: Any, **kwargs: Any) -> None:
        if issubclass(category, UserWarning) and Path(filename).is_relative_to(package):
            say(f"warning: {str(message).rstrip('.')}.")
        else:
            default(message, category, filename, *args, **kwargs)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = default


def duration(seconds: float) -> str:
    """Format a duration for people: "8 s", "2 min 05 s", "3 h 20 min".

    Args:
        seconds: The duration; a negative one counts as zero.

    Returns:
        The text, rounded to seconds below an hour and to minutes above.
    """
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Steps:
    """Announces the steps of a task as sentences such as "2 of 5: timing torch (about 8 s left)".

    Args:
        total: Number of steps.
        say: Called with each sentence.
    """

    def __init__(self, total: int, say: Say = silent) -> None:
        self.total, self.say = total, say
        self._began, self._count = time.monotonic(), 0

    def next(self, text: str) -> None:
        """Announce the next step.

        Args:
            text: What the step does.
        """
        left = f" ({self.left()})" if self._count else ""
        self._count += 1
        self.say(f"{self._count} of {self.total}: {text}{left}")

    def left(self, done: int | None = None) -> str:
        """Estimate the remaining time from the mean duration of the completed steps.

        Args:
            done: Number of completed steps; by default those announced so far.

        Returns:
            A phrase such as "about 8 s left".
        """
        done = self._count if done is None else done
        rest = (time.monotonic() - self._began) / max(done, 1) * (self.total - done)
        return f"about {duration(rest)} left"
