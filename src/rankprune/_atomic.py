"""A file that is either the old one or the new one, whatever happens in between."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write to a temporary name beside the file, sync, rename."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into: make it first")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file")
    name = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    # Not mkstemp, whose files nobody else may read: who may is for the old file to say, or the process's umask.
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with contextlib.suppress(OSError):
            os.fchmod(handle, path.stat().st_mode & 0o777)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut
    finally:
        os.close(folder)
