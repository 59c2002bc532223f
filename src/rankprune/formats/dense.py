"""A model's state dict as an ordinary safetensors file, zeros and all, that any reader of the format takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from rankprune._util import write_atomic

from .sparse import ABOUT, need_dense


def save_dense(model: nn.Module, path: str | Path, *, about: Mapping[str, Any] | None = None) -> None:
    """Write every entry of the state dict under its own name; the old file stays until the new one is complete.

    Args:
        model: The network.
        path: The file to write.
        about: Plain values to keep in the file's metadata, which say what model the weights are of.
    """
    # Copies: the format has no ties, and a tied weight must be found under both names.
    entries = model.state_dict().items()
    state = {name: need_dense(name, tensor).detach().cpu().contiguous().clone() for name, tensor in entries}
    more = {} if about is None else {ABOUT: json.dumps(dict(about), sort_keys=True)}
    write_atomic(path, safetensors.torch.save(state, {"format": "pt", **more}))
