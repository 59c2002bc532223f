"""The settings of a method: its own fields and those of its plan, as one flat list of keywords.

`RPG(lam=4.0, every=50)` has `every` from its plan. Here such settings are named, checked, handed to the plan, and
explained in `help(RPG)`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rankprune._util import nearest

_SECTION = re.compile(r"^Args:\n((?:    .*\n|\n)+)", re.M)
_ENTRY = re.compile(r"^    (\w+): ((?:.*\n)(?:     .*\n)*)", re.M)


def settings_of(cls: type) -> dict[str, Any]:
    """The hyper-parameters of a method class with their types: its own, and those of its plan.

    Args:
        cls: The class of a method, such as `method_info("rpg").cls`.

    Returns:
        Type hints by name. A method takes those of its plan (`every`, `prune_end`, …) as keywords too.
    """
    plan = type(cls.plan)  # type: ignore[attr-defined]
    hints = {**_hints(plan), **_hints(cls)}
    return {name: hints[name] for name in (*field_names(cls), *field_names(plan))}


def check_choices(settings: Any) -> None:
    """Raise if a field that is declared as a `Literal` has another value.

    Args:
        settings: A method or a plan.

    Raises:
        ValueError: A field has a value that is not allowed.
    """
    hints = _hints(type(settings))
    for name in field_names(type(settings)):
        hint = hints[name]
        if get_origin(hint) is Literal and getattr(settings, name) not in get_args(hint):
            allowed = " or ".join(map(repr, get_args(hint)))
            raise ValueError(f"{name}={getattr(settings, name)!r} is unknown: use {allowed}")


def route_to_plan(cls: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Move settings of the plan (`every`, `prune_end`, …), given as keywords of the method, into its `plan`.

    Args:
        cls: The class of a method.
        settings: What it was called with.

    Returns:
        Arguments of the constructor, with those settings in `plan`.
    """
    own = {key: value for key, value in settings.items() if key in field_names(cls)}
    plan = own.get("plan", getattr(cls, "plan", None))
    flat = {key: value for key, value in settings.items() if key not in own}
    if not flat or plan is None or not flat.keys() <= set(field_names(type(plan))):
        return dict(settings)  # the constructor raises for an unknown name
    return {**own, "plan": replace(plan, **flat)}


def create(cls: type, hyper: Mapping[str, Any]) -> Any:
    """A method with these hyper-parameters.

    Args:
        cls: The class of a method.
        hyper: Its hyper-parameters and those of its plan.

    Raises:
        ValueError: One of them is unknown; the message names the nearest.
    """
    known = list(settings_of(cls))
    for key in hyper:
        if key not in known:
            raise ValueError(f"{cls.info.name} has no hyper-parameter {key!r}: {nearest(key, known)}")  # type: ignore[attr-defined]
    return cls(**hyper)


def field_names(cls: type) -> list[str]:
    """The names of a dataclass's fields that its constructor takes.

    Args:
        cls: The class of a method, plan or extra.
    """
    return [f.name for f in fields(cls) if f.init]


def explained(cls: type) -> dict[str, str]:
    """The entries of the "Args" section of a class's own docstring.

    Args:
        cls: The class.
    """
    section = _SECTION.search(inspect.cleandoc(vars(cls).get("__doc__") or "") + "\n")
    return dict(_ENTRY.findall(section.group(1))) if section else {}


def with_inherited_args(cls: type, bases: Iterable[type], settings: Iterable[str]) -> str:
    """The docstring of a class with an "Args" section for all its settings, each explained by the nearest base.

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


def _hints(cls: type) -> dict[str, Any]:
    try:
        return get_type_hints(cls)
    except NameError:  # a plug-in imports names for type checkers only
        return dict.fromkeys(field_names(cls), Any)
