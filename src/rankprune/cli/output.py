"""What the commands print."""

from __future__ import annotations

import codecs
import io
import json
import sys
from typing import Any, TextIO

# The signs that our own text uses, for terminals that cannot show them.
_PLAIN = {"δ": "delta", "λ": "lambda", "±": "+-", "×": "x", "…": "...", "–": "-", "’": "'"}


def emit(as_json: bool, value: Any, text: str) -> int:
    print(json.dumps(value, indent=2) if as_json else text)
    return 0


def say(text: str) -> None:
    """To a person: on stderr, so that stdout holds the result alone."""
    print(text, file=sys.stderr)


def speak_plainly(*streams: TextIO) -> None:
    """Where a terminal's encoding lacks a sign (Latin-1 has no δ), print words in its place instead of failing."""
    codecs.register_error("rankprune", _plain)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):  # not what a notebook or a test puts there
            stream.reconfigure(errors="rankprune")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in signs), error.end


def data_override(folder: str | None) -> list[str]:
    return [] if folder is None else [f"data.root={json.dumps(folder)}"]
