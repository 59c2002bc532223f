"""YAML in the strict sense people expect: 5e-4 is a number and a key given twice is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .errors import RecipeError

try:
    import yaml
except ModuleNotFoundError:  # said here because the models' helper for this would import torch
    raise ImportError("A recipe needs yaml, which is not installed: pip install 'rankprune[train]'.") from None


class Loader(yaml.SafeLoader):
    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


# YAML 1.1 takes 5e-4 for a word, because it lacks the dot.
_NUMBER = re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$")
Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789"))


def parse(text: str, source: str) -> Any:
    """The value that `text` says; `source` names it in an error."""
    try:
        return yaml.load(text, Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise RecipeError(f"{source} is not YAML{where}: {problem}.") from None


def read(path: Path) -> dict[str, Any]:
    """A file that holds a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise RecipeError(f"The file {path} cannot be read: {reason}.") from None
    value = parse(text, str(path))
    if not isinstance(value, dict):
        raise RecipeError(f"{path} holds no recipe: a recipe is `key: value` lines.")
    return value


def dump(value: dict[str, Any]) -> str:
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))
