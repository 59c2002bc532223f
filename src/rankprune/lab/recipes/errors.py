"""What the recipes room raises on bad input; the message is one sentence for the user."""

from __future__ import annotations

from typing import Any


class RecipeError(ValueError):
    """A recipe that cannot be found, read or understood."""


def shorten(value: Any) -> str:
    """A value for a sentence, however long it is."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
