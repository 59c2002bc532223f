"""Progress of `compile`: one line on a terminal that each step replaces, and nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Say = Callable[[str], None]
_CLEAR = "\r\x1b[2K"  # carriage return, erase the line


def silent(text: str) -> None:
    """Ignore the text.

    Args:
        text: A step.
    """


@contextmanager
def progress(stream: TextIO | None = None) -> Iterator[Say]:
    """Show the steps within the block on a terminal, and remove the line at the end.

    Args:
        stream: Where to show them; stderr by default.

    Yields:
        A function that is called with each step. It does nothing if the stream is not a terminal.
    """
    stream = sys.stderr if stream is None else stream
    if stream is None or not stream.isatty():  # stderr is None under pythonw
        yield silent
        return

    def say(text: str) -> None:
        stream.write(f"{_CLEAR}rankprune compile: {text}")
        stream.flush()

    try:
        yield say
    finally:
        stream.write(_CLEAR)
        stream.flush()
