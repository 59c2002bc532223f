"""What the recipes room raises on bad input; the message is one sentence for the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class RecipeError(ValueError):
    """A recipe that cannot be found, read or understood."""


def shorten(value: Any) -> str:
    """A value for a sentence, however long it is."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def closest(word: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.5)), None)


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence: the nearest known word, or all of them."""
    known = sorted(known)
    close = closest(word, known)
    return f"did you mean {close!r}?" if close else f"known are {', '.join(known)}."
