"""What the hosts share: a sparsifier's state as a file in a checkpoint's folder, and what is logged."""

from __future__ import annotations

import io
from pathlib import Path

import torch

from rankprune._util import write_atomic
from rankprune.core.sparsifier import Sparsifier

FILE = "rankprune.pt"


def save(sparsifier: Sparsifier, folder: str | Path, writer: bool = True) -> None:
    """Call it on every rank (sharded masks are gathered); only the `writer` touches the disk.

    Args:
        sparsifier: The sparsifier.
        folder: The folder of the checkpoint.
        writer: Whether this rank writes.
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
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise ValueError(f"{path} is missing, so its masks are unknown: resume from a checkpoint that has the file")
    sparsifier.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))


def logged(sparsifier: Sparsifier) -> dict[str, float]:
    """Target and actual sparsity, as numbers to log.

    Args:
        sparsifier: The sparsifier.
    """
    return {"target_sparsity": sparsifier.target, "sparsity": sparsifier.sparsity}
