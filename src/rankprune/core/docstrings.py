"""Makes `help()` of a method explain all of its settings: also those of its bases and of its plan."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

_SECTION = re.compile(r"^Args:\n((?:    .*\n|\n)+)", re.M)
_ENTRY = re.compile(r"^    (\w+): ((?:.*\n)(?:     .*\n)*)", re.M)


def explained(cls: type) -> dict[str, str]:
    """The entries of the "Args" section of a class's own docstring.

    Args:
        cls: The class.
    """
    section = _SECTION.search(inspect.cleandoc(vars(cls).get("__doc__") or "") + "\n")
    return dict(_ENTRY.findall(section.group(1))) if section else {}


def with_inherited_args(cls: type, bases: Iterable[type], settings: Iterable[str]) -> str:
    """The docstring of a class with an "Args" section for all its settings, each in the words of the nearest base.

    Args:
        cls: The class.
        bases: Classes whose docstrings explain settings too, the nearest first.
        settings: The names to explain.
    """
    doc = inspect.cleandoc(cls.__doc__ or "") + "\n"
    entries: dict[str, str] = {}
    for base in bases:
        entries = {**explained(base), **entries}
    section = "Args:\n" + "".join(f"    {name}: {entries[name]}" for name in settings if name in entries)
    if _SECTION.search(doc):
        return _SECTION.sub(lambda _: section + "\n", doc, count=1).rstrip()
    return f"{doc}\n{section}".rstrip()
