"""The registry of methods and extras, open to plug-ins by decorator or entry point."""

from __future__ import annotations

import fnmatch
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

from rankprune._util import nearest, shorten

from .cost import TrainingCost
from .settings import create, field_names, settings_of, with_inherited_args

Exact = Literal["always", "end"]
Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class MethodInfo:
    """What is known about a method without running it.

    Attributes:
        name: What `attach` takes.
        cls: The subclass of Method.
        description: The first line of its docstring.
        paper: Where it was published.
        family: Related methods share one.
        exact: Whether the count is the declared budget at every step ("always") or only at the end ("end").
        moves: Whether masks change during training.
        needs: What it needs beside the weights: "grad", "data", "loss".
    """

    name: str
    cls: Any
    description: str
    paper: str
    family: str
    exact: Exact
    moves: bool
    needs: frozenset[str]

    @property
    def cost(self) -> TrainingCost:
        """What training by it costs: the method's own `cost`, or derived from the gradients that its updates need."""
        if self.cls.cost is not None:
            return self.cls.cost
        return self.cls.plan.cost_by_gradient if "grad" in self.needs else TrainingCost()


_METHODS: dict[str, MethodInfo] = {}
_EXTRAS: dict[str, type] = {}
_loaded = False


def register(
    name: str,
    *,
    paper: str = "",
    family: str = "plug-in",
    exact: Exact = "always",
    moves: bool = True,
    needs: Iterable[str] = (),
) -> Callable[[Class], Class]:
    """Class decorator that makes a method known by name.

    Args:
        name: What `attach` will take.
        paper: Where it was published.
        family: A heading for lists.
        exact: "end" if the count floats and is exact only at the end.
        moves: Whether masks change during training.
        needs: What it needs beside the weights: "grad", "data", "loss".

    Returns:
        The decorator.

    Raises:
        ValueError: The name is taken, or the class has no plan.
    """

    def add(cls: Class) -> Class:
        if name in _METHODS and _METHODS[name].cls.__qualname__ != cls.__qualname__:
            raise ValueError(f"a method named {name!r} is registered already: choose another name")
        if not hasattr(cls, "plan"):
            raise ValueError(
                f"{name} has no plan, so nothing says when it prunes: add `plan: Plan = AtOnce()` to {cls.__name__}, "
                "or another of rankprune.plan"
            )
        first_line = (cls.__doc__ or "").strip().split("\n")[0]
        info = MethodInfo(name, cls, first_line, paper, family, exact, moves, frozenset(needs))
        cls.info = info  # type: ignore[attr-defined]
        bases = (*cls.__mro__, *type(cls.plan).__mro__)  # type: ignore[attr-defined]
        cls.__doc__ = with_inherited_args(cls, bases, settings_of(cls)) if cls.__doc__ else None
        _METHODS[name] = info
        return cls

    return add


def list_methods(pattern: str = "*") -> list[str]:
    """Names of the methods that match a shell pattern.

    Args:
        pattern: A shell pattern such as "*snip*".
    """
    _load_all()
    return sorted(fnmatch.filter(_METHODS, pattern))


def method_info(name: str) -> MethodInfo:
    """What is known about a method.

    Args:
        name: As in `list_methods()`.

    Returns:
        Its class, paper, family and needs.

    Raises:
        ValueError: There is no such method; the message names the nearest.
    """
    if not _is_method(name):
        raise ValueError(f"there is no method {shorten(name)}: {nearest(str(name), list_methods())}")
    return _METHODS[name]


def settings_for(name: str, hyper: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one method: `rigl={"every": 10}` applies to the method of that name only, and takes precedence.

    Those of other methods are checked as well, so that a sweep does not fail at its last method for a misspelt name.

    Args:
        name: The method.
        hyper: Settings that were given to `attach`.
    """
    named = {key: value for key, value in hyper.items() if isinstance(value, Mapping) and _is_method(key)}
    for other, settings in named.items():
        create(_METHODS[other].cls, settings)
    return {**{key: value for key, value in hyper.items() if key not in named}, **named.get(name, {})}


def register_extra(cls: Class) -> Class:
    """Class decorator that makes an extra known by its `name`.

    Args:
        cls: A subclass of `Extra`.
    """
    _EXTRAS[cls.name] = cls  # type: ignore[attr-defined]
    return cls


def list_extras(pattern: str = "*") -> list[str]:
    """Names of the extras that match a shell pattern.

    Args:
        pattern: A shell pattern such as "rank_*".
    """
    importlib.import_module("rankprune.extras")
    return sorted(fnmatch.filter(_EXTRAS, pattern))


def create_extra(name: str, **options: Any) -> Any:
    """Create an extra by name.

    Args:
        name: As in `list_extras()`.
        **options: Its settings.

    Returns:
        The extra, for `attach(extras=[...])`.

    Raises:
        ValueError: There is no such extra or option; the message names the nearest.
    """
    if name not in list_extras():
        raise ValueError(f"there is no extra {name!r}: {nearest(name, _EXTRAS)}")
    known = field_names(_EXTRAS[name])
    if unknown := [option for option in options if option not in known]:
        raise ValueError(f"{name} has no option {unknown[0]!r}: {nearest(unknown[0], known)}")
    return _EXTRAS[name](**options)


def _is_method(name: str) -> bool:
    """Whether there is a method of this name. Loads the module of that name, or all if there is none."""
    if not isinstance(name, str):
        return False
    if name not in _METHODS and name.isidentifier() and find_spec(f"rankprune.methods.{name}"):
        importlib.import_module(f"rankprune.methods.{name}")
    if name not in _METHODS:
        _load_all()
    return name in _METHODS


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
        except Exception as error:  # a broken plug-in must not disable the built-in methods
            warnings.warn(f"plug-in {plugin.value} is left out ({type(error).__name__}: {error})", stacklevel=3)
