"""Small helpers every room may use: atomic file writes, optional imports, suggestions for misspelt names."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write a file so that a reader sees either the old content or the new, never a part of it.

    The data goes to a temporary name beside the file, is synced to disk, and is renamed over the target.

    Args:
        path: The file to write. Its folder must exist.
        data: The whole content.

    Raises:
        FileNotFoundError: The folder does not exist.
        IsADirectoryError: The path is a folder.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into: make it first")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file")
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    # mkstemp would create the file with mode 0600; here the old file's mode or the process's umask decides.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with contextlib.suppress(OSError):
            os.fchmod(handle, path.stat().st_mode & 0o777)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut
    finally:
        os.close(folder)


def need(module: str, extra: str, purpose: str) -> Any:
    """Import an optional library.

    Args:
        module: Dotted name of the module.
        extra: The extra of this package that installs it.
        purpose: What needs it, the subject of the error sentence.

    Returns:
        The imported module.

    Raises:
        ImportError: The library is not installed; the sentence names ``rankprune[extra]``.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is missing inside the library is the library's own error.
        if error.name != module.partition(".")[0]:
            raise
        raise ImportError(
            f"{purpose} needs {error.name}, which is not installed: pip install 'rankprune[{extra}]'."
        ) from None


def shorten(value: Any) -> str:
    """Return ``repr(value)`` on one line and no longer than 60 characters, for an error sentence.

    Args:
        value: The text or value to shorten.
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def percent(share: float, digits: int = 2) -> str:
    """Return a share as a percentage: "98.50 %".

    Args:
        share: A number from 0 to 1.
        digits: Digits after the point.
    """
    return f"{100 * share:.{digits}f} %"


def one_line(error: object, limit: int = 160) -> str:
    """Return a message on one line and no longer than ``limit`` characters, for the middle of an error sentence.

    Args:
        error: An exception, or its message.
        limit: Largest number of characters.
    """
    text = " ".join(str(error).split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most similar to ``word``, or None if none is similar.

    Args:
        word: The misspelt word.
        known: The words to choose from.
    """
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.5)), None)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of an error sentence: the closest known word, or all of them.

    Args:
        word: The misspelt word.
        known: The words to choose from.
    """
    known = sorted(known)
    close = closest(word, known)
    return f"did you mean {close!r}?" if close else f"known are {', '.join(known)}"
