"""The command `rankprune`: parses, calls, prints."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from .output import speak_plainly
from .parser import build_parser

__all__ = ["build_parser", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; whatever goes wrong is one sentence on stderr."""
    speak_plainly(sys.stdout, sys.stderr)
    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe has left: `rankprune recipes | head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (so that the interpreter's last flush is quiet too)
        return 0
    except Exception as error:
        if os.environ.get("RANKPRUNE_DEBUG"):
            traceback.print_exc()
        if not getattr(error, "already_reported", False):  # by another process of the run
            print(f"rankprune: {_sentence(error)}", file=sys.stderr)
        return int(getattr(error, "exit_code", 2 if isinstance(error, _BAD_INPUT) else 1))


# What the rooms below raise on bad input; all of it is ValueError, OSError or a missing library.
_BAD_INPUT = (ValueError, OSError, ImportError)


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, _BAD_INPUT) or hasattr(error, "exit_code"):
        return text
    return f"{type(error).__name__}: {text} (not foreseen: RANKPRUNE_DEBUG=1 shows where)"
