"""What the recipes room raises on bad input; the message is one sentence for the user."""

from __future__ import annotations


class RecipeError(ValueError):
    """A recipe that cannot be found, read or understood."""
