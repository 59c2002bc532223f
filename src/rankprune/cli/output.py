"""Printing results and messages, and checking output paths."""

from __future__ import annotations

import codecs
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

# Replacements for our non-ASCII characters, for terminals that cannot show them.
_PLAIN = {"δ": "delta", "λ": "lambda", "±": "+-", "×": "x", "…": "...", "–": "-", "’": "'"}


def emit(as_json: bool, value: Any, text: str) -> int:
    """Print the result of a command.

    Args:
        as_json: Print JSON instead of text.
        value: The result as plain values.
        text: The result as text.

    Returns:
        The exit code 0.
    """
    print(json.dumps(value, indent=2) if as_json else text)
    return 0


def say(text: str) -> None:
    """Print for a person: on stderr, so that stdout holds only the result.

    Args:
        text: The text.
    """
    print(text, file=sys.stderr, flush=True)


def note(text: str) -> None:
    """Print progress or a warning, with the program's name.

    Args:
        text: One sentence.
    """
    say(f"rankprune: {text}")


def check_folder(path: str) -> str:
    """Check before the work that a folder can be written.

    Args:
        path: A folder; it need not exist.

    Returns:
        The path.

    Raises:
        ValueError: The folder cannot be created or written.
    """
    folder = Path(path)
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise ValueError(f"--out {path} cannot be a folder, because {existing} is a file: give another folder.")
    _check_writable(existing, path)
    return path


def check_file(path: str) -> Path:
    """Check before the work that a file can be written.

    Args:
        path: A file; it need not exist.

    Returns:
        The path.

    Raises:
        ValueError: The path is a folder, or its folder does not exist or cannot be written.
    """
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"--out {path} is a folder: give the name of a file.")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"--out {path} is in a folder that does not exist: create {file.parent} first.")
    _check_writable(file.absolute().parent, path)
    return file


def _check_writable(folder: Path, path: str) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"--out {path} cannot be written ({error.strerror}): give a folder that you may write to."
        ) from None


def replace_unencodable(*streams: TextIO) -> None:
    """Print replacements for characters that a terminal's encoding lacks (Latin-1 has no δ), instead of failing.

    Args:
        *streams: stdout and stderr.
    """
    codecs.register_error("rankprune", _replace)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):  # notebooks and tests use other classes
            stream.reconfigure(errors="rankprune")


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in signs), error.end
