"""Data sets by name: the embedded Fashion-MNIST subset, CIFAR-10 from its official files, image folders, COCO."""

from __future__ import annotations

from .base import IGNORE, DataModule
from .errors import DataError
from .load import list_data, load_data

__all__ = ["IGNORE", "DataError", "DataModule", "list_data", "load_data"]
