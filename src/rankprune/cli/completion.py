"""`rankprune completion`: a script that shtab generates from the parser; recipes are completed by name."""

from __future__ import annotations

import argparse

from rankprune._util import need
from rankprune.lab.recipes.names import list_recipes

from .output import emit
from .parser import build_parser

_BASH = "_rankprune_recipes() {{ compgen -W '{names}' -- \"$1\"; compgen -f -X '!*.yaml' -- \"$1\"; }}"
_ZSH = "_rankprune_recipes() {{ compadd -- {names}; _files -g '*.yaml' }}"


def run(args: argparse.Namespace) -> int:
    """Print the completion script.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    shtab = need("shtab", "train", "Completion")
    parser = build_parser()
    names = " ".join(list_recipes())
    for action in parser._actions:
        train = action.choices.get("train") if isinstance(action.choices, dict) else None
        for argument in train._actions if train else []:
            if argument.dest == "recipe":
                argument.complete = {"bash": "_rankprune_recipes", "zsh": "_rankprune_recipes"}
    preamble = {"bash": _BASH.format(names=names), "zsh": _ZSH.format(names=names)}
    script = shtab.complete(parser, args.shell, preamble=preamble)
    return emit(args.json, {"shell": args.shell, "script": script}, script)
