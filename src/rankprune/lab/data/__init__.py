"""Data by name: the embedded Fashion-MNIST slice, CIFAR-10 in its official files, folders of images, COCO."""

from __future__ import annotations

from .base import IGNORE, DataModule
from .errors import DataError
from .load import list_data, load_data

__all__ = ["IGNORE", "DataError", "DataModule", "list_data", "load_data"]
