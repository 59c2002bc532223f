"""Checks that all processes have the same masks."""

from __future__ import annotations

import hashlib

import numpy as np

from rankprune.core.sparsifier import Sparsifier
from rankprune.lab.errors import MasksDiffer

from .world import World


def digest(sparsifier: Sparsifier) -> int:
    """Hash the step, the budgets and the masks; of sharded masks, their counts.

    Args:
        sparsifier: The sparsifier of this process.

    Returns:
        A 63-bit digest.
    """
    text = hashlib.blake2b(digest_size=8)
    text.update(str([sparsifier.step, *(group.budget for group in sparsifier.groups)]).encode())
    for layer in sparsifier.layers:
        kept = str(layer.kept()).encode() if layer.shards else np.packbits(layer.mask.cpu().numpy()).tobytes()
        text.update(layer.key.encode() + b"\0" + kept)
    return int.from_bytes(text.digest(), "little") >> 1


def check_masks_agree(sparsifier: Sparsifier | None, world: World, where: str) -> None:
    """Raise on every process if the masks of any process differ from the main process's.

    Args:
        sparsifier: The sparsifier of this process, or None in a dense run.
        world: The processes of the run.
        where: Folder of the run, for the message.

    Raises:
        MasksDiffer: The masks differ.
    """
    if sparsifier is None or world.size == 1:
        return
    digests = world.all_gather_int(digest(sparsifier))
    if other := [rank for rank, number in enumerate(digests) if number != digests[0]]:
        raise MasksDiffer(
            f"The masks of process {other[0]} are not those of process 0 at step {sparsifier.step} of {where}: "
            "continue with --resume, and if it happens again check the machine of that process.",
            already_reported=not world.main,
        )
