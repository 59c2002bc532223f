"""File formats for a model's tensors: compact sparse safetensors, plain safetensors and ONNX."""

from __future__ import annotations

from .sparse import is_sparse_file, load, save

__all__ = ["is_sparse_file", "load", "save"]
