"""The exception of this room. Its message is one sentence for the user."""

from __future__ import annotations


class RecipeError(ValueError):
    """A recipe that cannot be found or read, or has an invalid value."""
