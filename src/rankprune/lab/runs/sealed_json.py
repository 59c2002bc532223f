"""JSON tables that carry a checksum of themselves, so that a changed or incomplete one is noticed when it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHECKSUM = "checksum"


class NotWhole(ValueError):
    """What is wrong with a table, as the end of a sentence."""


def seal(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with its checksum as the last entry."""
    plain = {key: value for key, value in table.items() if key != CHECKSUM}
    return {**plain, CHECKSUM: _digest(plain)}


def unseal(table: Any, types: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """The table without its checksum; NotWhole where it was changed, or where an entry of `types` is absent or wrong.

    A table that has no checksum was written by an older version, and its entries alone are looked at.
    """
    if not isinstance(table, dict):
        raise NotWhole("it holds no table")
    plain = {key: value for key, value in table.items() if key != CHECKSUM}
    if missing := [key for key in types if key not in plain]:
        raise NotWhole(f"it lacks {missing[0]!r}" + f" and {len(missing) - 1} more" * (len(missing) > 1))
    if wrong := [key for key, kind in types.items() if not isinstance(plain[key], kind) or plain[key] is True]:
        raise NotWhole(f"{wrong[0]} is {str(plain[wrong[0]])[:40]!r}")
    if CHECKSUM in table and table[CHECKSUM] != _digest(plain):
        raise NotWhole("it was changed after it was written: the checksum differs")
    return plain


def read_table(path: Path) -> Any:
    """The value of a JSON file; NotWhole where it is cut short, no JSON or not to be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise NotWhole("it is cut short or not JSON") from None


def _digest(plain: Mapping[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
