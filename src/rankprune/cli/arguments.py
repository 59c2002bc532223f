"""An argument parser that accepts options and positional arguments in any order and explains mistakes."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from rankprune._util import nearest

_WORD = r"[\w-]+"
_CHOICE = re.compile(r"argument (\S+): invalid choice: '(.*?)' \(choose from (.*)\)")
_SETTING = re.compile(r"[\w.+-]+=(?!.*\.ya?ml$)")  # key=value, but not a file such as lr=0.1.yaml
_UNKNOWN = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one sentence with an example, where argparse prints its whole usage."""

    def error(self, message: str) -> NoReturn:
        """Print one sentence and exit with code 2.

        Args:
            message: The message of argparse.
        """
        message = message.replace("the following arguments are required: ", "it needs ").removesuffix(", key=value")
        if match := _CHOICE.fullmatch(message):
            hint = nearest(match[2], re.findall(_WORD, match[3]))
            hint += "" if hint.endswith("?") else "."
            self.exit(2, f"{self.prog}: {match[1]} {match[2]!r} is unknown ({self.prog} --help lists all): {hint}\n")
        if message.startswith(_UNKNOWN):
            message = f"there is no argument {message.removeprefix(_UNKNOWN)}"
        example = next(
            (line.strip() for line in (self.description or "").splitlines() if line.startswith("  rank")), ""
        )
        example = example.partition("   ")[0]
        way_out = f"for example `{example}`, and {self.prog} --help says more" if example else f"{self.prog} --help"
        self.exit(2, f"{self.prog}: {message}: {way_out}.\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; an unknown one is reported by the parser of its command, with the command's example.

        Args:
            args: The command line without the program's name.
            namespace: Object to fill.

        Returns:
            The parsed arguments.
        """
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            commands = next((action.choices for action in self._actions if isinstance(action.choices, dict)), {})
            commands.get(getattr(parsed, "command", None), self).error(_UNKNOWN + " ".join(unknown))
        return parsed


def positionals_first(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """Put a command's positional arguments before its options.

    argparse stops collecting ``key=value`` arguments at the first option; this allows them anywhere, also before the
    name of the recipe.

    Args:
        parser: The parser of all commands.
        argv: The command line, without the program's name.

    Returns:
        The same words in another order: the command, its positional arguments, its options with their values.
    """
    if not argv or argv[0].startswith("-"):
        return list(argv)
    commands = next(action.choices for action in parser._actions if isinstance(action.choices, dict))
    if argv[0] not in commands:
        return list(argv)
    known = commands[argv[0]]._option_string_actions
    positional: list[str] = []
    options: list[str] = []
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        if word == "--":
            positional += words
            break
        if not word.startswith("-") or word == "-":
            positional.append(word)
            continue
        options.append(word)
        action = known.get(word) or _abbreviated(word, known)
        if action is None or "=" in word or not words:
            continue
        optional = action.nargs == "?"  # --ray [ADDRESS]: a key=value after it is not an address
        if (action.nargs is None or optional) and not (optional and (words[0].startswith("-") or "=" in words[0])):
            options.append(words.pop(0))
    positional.sort(key=lambda word: _SETTING.match(word) is not None)  # stable: each kind keeps its order
    separator = ["--"] if any(word.startswith("-") for word in positional) else []
    return [argv[0], *options, *separator, *positional] if separator else [argv[0], *positional, *options]


def _abbreviated(word: str, known: dict[str, argparse.Action]) -> argparse.Action | None:
    """The option that an unambiguous prefix stands for, as in argparse."""
    candidates = [action for option, action in known.items() if option.startswith(word)]
    return candidates[0] if len(candidates) == 1 else None


def command_line(argv: Sequence[str] | None) -> list[str]:
    """Return the arguments of the command line.

    Args:
        argv: The arguments, or None for those of this process.

    Returns:
        The arguments without the program's name.
    """
    return list(sys.argv[1:] if argv is None else argv)
