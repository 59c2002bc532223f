"""Checkpoints with a checksum: a torch file whose SHA-256 is in the comment of the zip archive."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import struct
from pathlib import Path
from typing import Any

import torch

from rankprune._util import write_atomic
from rankprune.lab.errors import RunError
from rankprune.lab.runs.run_folder import writing

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
_DIGEST = 64  # hex digits of SHA-256


def write(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically. `torch.load(path, weights_only=True)` can read it too, without verifying it.

    Args:
        path: The file.
        state: Tensors and plain values.

    Raises:
        RunError: The file cannot be written.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    raw = buffer.getvalue()
    # A zip archive ends with the length of its comment and the comment; torch writes an empty one.
    digest = hashlib.sha256(raw).hexdigest().encode()
    with writing(path):
        write_atomic(path, raw[:-2] + struct.pack("<H", _DIGEST) + digest)


def read(path: Path) -> dict[str, Any]:
    """Read and verify a checkpoint.

    Args:
        path: The file.

    Returns:
        The state.

    Raises:
        ValueError: The file is damaged.
    """
    return parse(path.read_bytes(), path)


def parse(raw: bytes, path: Path) -> dict[str, Any]:
    """Verify and load the content of a checkpoint.

    Args:
        raw: The content.
        path: The file, for the message.

    Returns:
        The state.

    Raises:
        ValueError: The content is damaged.
    """
    body, digest = raw[: -_DIGEST - 2] + b"\0\0", raw[-_DIGEST:]
    if len(raw) < _DIGEST + 2 or hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError(f"{path.name} is damaged ({len(raw)} bytes with a wrong checksum)")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can make torch raise almost anything
        raise ValueError(f"{path.name} cannot be read ({type(error).__name__})") from None
    if not isinstance(state, dict):
        raise ValueError(f"{path.name} holds a {type(state).__name__} and not the state of a run")
    return state


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write the newest checkpoint and keep the previous one. `last.ckpt` is complete at every moment.

    Args:
        folder: The run's folder.
        state: Tensors and plain values.

    Raises:
        RunError: A file cannot be written.
    """
    new, last, previous = folder / "next.ckpt", folder / LAST, folder / PREVIOUS
    write(new, state)
    with writing(last):
        if last.exists():
            previous.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # without hard links, only the newest is kept
                os.link(last, previous)
        os.replace(new, last)


def exists(folder: Path) -> bool:
    """Whether a run has a checkpoint.

    Args:
        folder: The run's folder.

    Returns:
        True if it has.
    """
    return (folder / LAST).exists() or (folder / PREVIOUS).exists()


def load(folder: Path) -> tuple[dict[str, Any], str]:
    """Load the newest intact checkpoint.

    Args:
        folder: The run's folder.

    Returns:
        The state, and a sentence if the newest checkpoint was damaged.

    Raises:
        RunError: No checkpoint is intact.
    """
    raw, problem = newest(folder)
    return parse(raw, folder), problem


def newest(folder: Path) -> tuple[bytes, str]:
    """Read the newest intact checkpoint without loading it, to send it to other processes.

    Args:
        folder: The run's folder.

    Returns:
        The content, and a sentence if the newest checkpoint was damaged.

    Raises:
        RunError: No checkpoint is intact.
    """
    problems = []
    for name in (LAST, PREVIOUS):
        try:
            raw = (folder / name).read_bytes()
            parse(raw, folder / name)
        except FileNotFoundError:
            problems.append(f"{name} is missing")
        except (ValueError, OSError) as error:
            problems.append(str(error))
        else:
            return raw, f"{problems[0]}: continuing from {name}." if problems else ""
    raise RunError(f"No checkpoint of {folder} can be used ({', '.join(problems)}): remove the folder and start over.")
