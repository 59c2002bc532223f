"""The command `rankprune`: parses arguments, calls the package, prints results."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence

from rankprune.lab.progress import warnings_as_messages

from .arguments import command_line, positionals_first
from .output import note, replace_unencodable
from .parser import build_parser

__all__ = ["build_parser", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Every error is one sentence on stderr.

    Args:
        argv: The command line without the program's name; by default that of this process.

    Returns:
        The exit code.
    """
    replace_unencodable(sys.stdout, sys.stderr)
    parser = build_parser()
    words = positionals_first(parser, command_line(argv))
    try:
        args = parser.parse_args(words)
    except SystemExit as error:  # --help, or a mistake that the parser has reported
        return int(error.code or 0)
    try:
        with warnings_as_messages(note):
            return int(args.run(args))
    except KeyboardInterrupt:
        _report("Interrupted", words)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of a pipe has exited: `rankprune recipes | head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (so that the interpreter's final flush does not fail)
        return 0
    except Exception as error:
        if os.environ.get("RANKPRUNE_DEBUG"):
            traceback.print_exc()
        if not getattr(error, "already_reported", False):  # by another process of the run
            _report(_sentence(error), words if hasattr(error, "signum") else None)
        return int(getattr(error, "exit_code", 2 if isinstance(error, _BAD_INPUT) else 1))


# What the package raises on bad input: subclasses of ValueError, OSError, or ImportError for a missing library.
_BAD_INPUT = (ValueError, OSError, ImportError)
_RESUMABLE = ("train", "sweep", "demo", "paper")


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename} cannot be read or written ({error.strerror}): check its path and permissions."
    text = " ".join(str(error).split())
    if isinstance(error, _BAD_INPUT) or hasattr(error, "exit_code"):
        return text
    return f"{type(error).__name__}: {text} (a bug in rankprune: RANKPRUNE_DEBUG=1 shows where)."


def _report(sentence: str, interrupted: Sequence[str] | None) -> None:
    """Print a sentence; after an interruption, with the command that continues."""
    if interrupted and interrupted[0] in _RESUMABLE:
        words = list(interrupted)
        if words[0] == "train" and "--resume" not in words:
            words.insert(1, "--resume")
        program = "the same torchrun command with --resume"
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            program = f"`rankprune {shlex.join(words)}`"
        sentence = f"{sentence.rstrip('.')}; continue with {program}."
    end = "" if sentence.endswith((".", "?", "`")) else "."
    print(f"rankprune: {sentence}{end}", file=sys.stderr)
