"""A model's state dict as an ordinary safetensors file with all of its zeros, for any reader of the format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from rankprune._util import write_atomic

from .sparse import ABOUT_KEY, about_json, to_storable


def save_dense(model: nn.Module, path: str | Path, *, about: Mapping[str, Any] | None = None) -> None:
    """Write every entry of the state dict under its own name, atomically.

    Args:
        model: The model.
        path: The file to write.
        about: Values that JSON can hold, stored in the file's metadata to describe the model.

    Raises:
        ValueError: An entry or `about` cannot be stored.
    """
    # Copies, because safetensors refuses tensors that share memory, and tied weights must have both names.
    entries = model.state_dict().items()
    state = {name: to_storable(name, tensor).cpu().contiguous().clone() for name, tensor in entries}
    metadata = {"format": "pt"} if about is None else {"format": "pt", ABOUT_KEY: about_json(about)}
    write_atomic(path, safetensors.torch.save(state, metadata))
