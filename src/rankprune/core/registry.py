"""Names of methods and extras: one registry, open to plug-ins by decorator or entry point."""

from __future__ import annotations

import fnmatch
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from typing import Any, Literal, TypeVar

from rankprune._util import nearest

Exact = Literal["always", "end"]
Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class MethodInfo:
    """What is known of a method without running it."""

    name: str
    cls: Any  # the subclass of Method
    description: str
    paper: str
    family: str
    exact: Exact  # the count is the declared budget at every step, or only at the end
    moves: bool  # masks change during training
    needs: frozenset[str]  # of {"grad", "data", "loss"}
    state: str  # what it keeps beside the mask


_METHODS: dict[str, MethodInfo] = {}
_loaded = False


def register(
    name: str,
    *,
    paper: str = "",
    family: str = "plug-in",
    exact: Exact = "always",
    moves: bool = True,
    needs: Iterable[str] = (),
    state: str = "none",
) -> Callable[[Class], Class]:
    """Class decorator that makes a method known by name."""

    def add(cls: Class) -> Class:
        if name in _METHODS and _METHODS[name].cls.__qualname__ != cls.__qualname__:
            raise ValueError(f"a method named {name!r} is registered already: choose another name")
        first_line = (cls.__doc__ or "").strip().split("\n")[0]
        info = MethodInfo(name, cls, first_line, paper, family, exact, moves, frozenset(needs), state)
        cls.info = info  # type: ignore[attr-defined]
        _METHODS[name] = info
        return cls

    return add


def list_methods(pattern: str = "*") -> list[str]:
    """Names of the methods that match a shell pattern."""
    _load_all()
    return sorted(fnmatch.filter(_METHODS, pattern))


def method_info(name: str) -> MethodInfo:
    """Paper, needs and class of a method; an unknown name is an error that names the nearest."""
    _load_all()
    if name not in _METHODS:
        raise ValueError(f"there is no method {name!r}: {nearest(name, _METHODS)}")
    return _METHODS[name]


def create(cls: type, hyper: Mapping[str, Any]) -> Any:
    """An instance with these hyper-parameters; an unknown one is an error that names the nearest."""
    known = [f.name for f in fields(cls) if f.init]
    for key in hyper:
        if key not in known:
            raise ValueError(f"{cls.info.name} has no hyper-parameter {key!r}: {nearest(key, known)}")  # type: ignore[attr-defined]
    return cls(**hyper)


def settings_for(name: str, hyper: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one method: `rigl={"every": 10}` is for the method of that name alone, and wins.

    Those of other methods are checked as well, so that a sweep does not stop at its last method for a misspelt name.
    """
    _load_all()
    named = {key: value for key, value in hyper.items() if key in _METHODS and isinstance(value, Mapping)}
    for other, settings in named.items():
        create(_METHODS[other].cls, settings)
    return {**{key: value for key, value in hyper.items() if key not in named}, **named.get(name, {})}


def _load_all() -> None:
    global _loaded
    if _loaded:
        return
    _loaded = True
    package = importlib.import_module("rankprune.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"rankprune.methods.{module.name}")
    for plugin in entry_points(group="rankprune.methods"):
        try:
            plugin.load()
        except Exception as error:  # somebody else's: the methods that are here work all the same
            warnings.warn(f"plug-in {plugin.value} is left out ({type(error).__name__}: {error})", stacklevel=3)
