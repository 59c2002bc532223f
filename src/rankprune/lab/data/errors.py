"""The exception of this room, and reading a file whose checksum is known."""

from __future__ import annotations

import hashlib
from pathlib import Path


class DataError(ValueError):
    """Data that cannot be read. The message is one sentence for the user."""


def read_verified(path: Path, digest: str) -> bytes:
    """Read a file and verify its checksum.

    Args:
        path: The file.
        digest: The expected digest, as ``"algorithm:hex"``.

    Returns:
        The bytes of the file.

    Raises:
        DataError: The file is missing, unreadable or has another digest.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} is missing: fetch it again.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error
    algorithm, _, expected = digest.partition(":")
    actual = hashlib.new(algorithm, raw, usedforsecurity=False).hexdigest()
    if actual != expected:
        raise DataError(
            f"{path} is corrupt ({len(raw)} bytes whose {algorithm} begins {actual[:8]} and not {expected[:8]}): "
            "fetch it again."
        )
    return raw
