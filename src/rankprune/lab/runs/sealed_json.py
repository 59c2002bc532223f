"""JSON objects with a checksum, so that reading detects a changed or truncated file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHECKSUM = "checksum"


class NotWhole(ValueError):
    """A damaged object. The message is the end of a sentence."""


def seal(table: Mapping[str, Any]) -> dict[str, Any]:
    """Add a checksum.

    Args:
        table: The object.

    Returns:
        The object with its checksum as the last entry.
    """
    plain = {key: value for key, value in table.items() if key != CHECKSUM}
    return {**plain, CHECKSUM: _digest(plain)}


def unseal(table: Any, types: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """Verify and remove the checksum.

    An object without a checksum was written by an older version; only its entries are checked.

    Args:
        table: The parsed JSON.
        types: Required entries and their types.

    Returns:
        The object without its checksum.

    Raises:
        NotWhole: The object was changed, or an entry is missing or of the wrong type.
    """
    if not isinstance(table, dict):
        raise NotWhole("it is not a JSON object")
    plain = {key: value for key, value in table.items() if key != CHECKSUM}
    if missing := [key for key in types if key not in plain]:
        raise NotWhole(f"it lacks {missing[0]!r}" + f" and {len(missing) - 1} more" * (len(missing) > 1))
    if wrong := [key for key, kind in types.items() if not isinstance(plain[key], kind) or plain[key] is True]:
        raise NotWhole(f"{wrong[0]} is {str(plain[wrong[0]])[:40]!r}")
    if CHECKSUM in table and table[CHECKSUM] != _digest(plain):
        raise NotWhole("it was changed after it was written: the checksum differs")
    return plain


def read_table(path: Path) -> Any:
    """Read a JSON file.

    Args:
        path: The file.

    Returns:
        Its value.

    Raises:
        NotWhole: The file is truncated, is not JSON or cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise NotWhole("it is truncated or not JSON") from None


def _digest(plain: Mapping[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
