"""What the commands print, and checks of where they write."""

from __future__ import annotations

import codecs
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

# The signs that our own text uses, for terminals that cannot show them.
_PLAIN = {"δ": "delta", "λ": "lambda", "±": "+-", "×": "x", "…": "...", "–": "-", "’": "'"}


def emit(as_json: bool, value: Any, text: str) -> int:
    """Print the result of a command as JSON or as text, and return its exit code, 0."""
    print(json.dumps(value, indent=2) if as_json else text)
    return 0


def say(text: str) -> None:
    """Print for a person: on stderr, so that stdout holds the result alone."""
    print(text, file=sys.stderr, flush=True)


def note(text: str) -> None:
    """Print progress or a warning, with the program's name."""
    say(f"rankprune: {text}")


def check_folder(path: str) -> str:
    """Return the path of a folder to write into, made later if need be; refuse it now if that cannot work."""
    folder = Path(path)
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise ValueError(f"--out {path} cannot be a folder, because {existing} is a file: name another.")
    _check_writable(existing, path)
    return path


def check_file(path: str) -> Path:
    """Return the path of a file to write; refuse it now if it cannot be written."""
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"--out {path} is a folder: name a file in it.")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"--out {path} lies in no folder that exists: make {file.parent} first.")
    _check_writable(file.absolute().parent, path)
    return file


def _check_writable(folder: Path, path: str) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"--out {path} cannot be written ({error.strerror}): name a folder you may write to."
        ) from None


def replace_unencodable(*streams: TextIO) -> None:
    """Where a terminal's encoding lacks a sign (Latin-1 has no δ), print words in its place instead of failing."""
    codecs.register_error("rankprune", _replace)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):  # not what a notebook or a test puts there
            stream.reconfigure(errors="rankprune")


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in signs), error.end
