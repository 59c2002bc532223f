"""`rankprune models`, and `--model` of the other commands."""

from __future__ import annotations

import argparse
import contextlib
import json

from rankprune.lab.models import list_models, names_user_code, register_user_model

from .lists import matching
from .output import emit

_LIBRARIES = ("torchvision", "timm")


def allow(name: str | None) -> str | None:
    """Import the user's own code that --model names. Nothing else on the command line imports user code.

    Args:
        name: Value of --model, or None.

    Returns:
        The same name.
    """
    if name is not None and names_user_code(name):
        register_user_model(name)
    return name


def overrides(args: argparse.Namespace) -> list[str]:
    """Return the overrides of a recipe: those given as key=value, then those that options stand for.

    Args:
        args: The parsed arguments.

    Returns:
        Each as `key=value`.
    """
    settings = list(args.overrides)
    if args.data is not None:
        settings.append(f"data.root={json.dumps(args.data)}")
    if (name := allow(getattr(args, "model", None))) is not None:
        settings.append(f"model.name={json.dumps(name)}")
    return settings


def run(args: argparse.Namespace) -> int:
    """List models by pattern; a pattern without a library is searched in all of them.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    own = list_models("*" if args.pattern is None else args.pattern)
    libraries = _library_names()
    if args.pattern is None:
        lines = [*own, "", *(f"{library}:NAME  {len(names):,} models" for library, names in libraries.items())]
        lines += ["rankprune models '*resnet18*' searches all of them"]
        lines += ["--model package.module:factory or --model path/to/file.py:factory is a model of your own"]
        counts = {library: len(names) for library, names in libraries.items()}
        return emit(args.json, {"models": own, "libraries": counts}, "\n".join(lines))

    def search(pattern: str) -> list[str]:
        names = list_models(pattern)
        return names if ":" in pattern else names + [name for x in libraries for name in list_models(f"{x}:{pattern}")]

    names = matching("model", args.pattern, search)
    return emit(args.json, {"models": names}, "\n".join(names))


def _library_names() -> dict[str, list[str]]:
    names = {}
    for library in _LIBRARIES:
        with contextlib.suppress(ImportError):  # not installed
            names[library] = list_models(f"{library}:*")
    return names
