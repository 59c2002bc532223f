"""Shared by the integrations: a sparsifier's state as a file in a checkpoint folder, and the values to log."""

from __future__ import annotations

import io
from pathlib import Path

import torch

from rankprune._util import one_line, write_atomic
from rankprune.core.sparsifier import Sparsifier

FILE = "rankprune.pt"


def save(sparsifier: Sparsifier, folder: str | Path, writer: bool = True) -> None:
    """Write a sparsifier's state. Every rank must call it, because sharded masks are gathered.

    Args:
        sparsifier: The sparsifier.
        folder: The folder of the checkpoint.
        writer: Whether this rank writes the file.
    """
    state = sparsifier.state_dict()
    if writer:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_atomic(Path(folder) / FILE, buffer.getvalue())


def restore(sparsifier: Sparsifier, folder: str | Path) -> None:
    """Load the state that `save` wrote.

    Args:
        sparsifier: The sparsifier.
        folder: The folder of the checkpoint.

    Raises:
        ValueError: The file is missing or damaged.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise ValueError(f"{path} is missing, so its masks are unknown: resume from a checkpoint that has the file")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can make torch raise almost anything
        reason = one_line(error) or type(error).__name__
        raise ValueError(f"{path} is damaged ({reason}): resume from another checkpoint") from error
    sparsifier.load_state_dict(state)


def metrics(sparsifier: Sparsifier) -> dict[str, float]:
    """Return the values to log: target and actual sparsity.

    Args:
        sparsifier: The sparsifier.
    """
    return {"target_sparsity": sparsifier.target, "sparsity": sparsifier.sparsity}
