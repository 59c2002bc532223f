"""Files: a model's tensors on disk."""

from __future__ import annotations

from .sparse import is_ours, load, save

__all__ = ["is_ours", "load", "save"]
