"""The exceptions of this room. Each message is one sentence for the user."""

from __future__ import annotations


class ModelError(ValueError):
    """A model that cannot be built."""


class WeightsError(ModelError):
    """A file of weights that cannot be read, downloaded or loaded into its model."""
