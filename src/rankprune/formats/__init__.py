"""Files: a model's tensors on disk."""

from __future__ import annotations

from .sparse import load, save

__all__ = ["load", "save"]
