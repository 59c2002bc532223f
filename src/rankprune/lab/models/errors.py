"""What the models room raises on bad input; the message is one sentence for the user."""

from __future__ import annotations


class ModelError(ValueError):
    """A model that cannot be built."""


class WeightsError(ModelError):
    """A weights file that cannot be read, fetched or fitted to its model."""
