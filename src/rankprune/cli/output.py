"""What the commands print."""

from __future__ import annotations

import json
import sys
from typing import Any


def emit(as_json: bool, value: Any, text: str) -> int:
    print(json.dumps(value, indent=2) if as_json else text)
    return 0


def say(text: str) -> None:
    """To a person: on stderr, so that stdout holds the result alone."""
    print(text, file=sys.stderr)


def data_override(folder: str | None) -> list[str]:
    return [] if folder is None else [f"data.root={json.dumps(folder)}"]
