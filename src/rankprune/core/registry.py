"""Names of methods and extras: one registry, open to plug-ins by decorator or entry point."""

from __future__ import annotations

import fnmatch
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from rankprune._util import nearest, shorten

from .cost import TrainingCost
from .docstrings import with_inherited_args

Exact = Literal["always", "end"]
Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class MethodInfo:
    """What is known of a method without running it.

    Attributes:
        name: What `attach` takes.
        cls: The subclass of Method.
        description: The first line of its docstring.
        paper: Where it was published.
        family: Related methods share one.
        exact: Whether the count is the declared budget at every step ("always") or only at the end ("end").
        moves: Whether masks change during training.
        needs: What it draws on beside the weights, of "grad", "data" and "loss".
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
        """What training by it costs: as the method says, or by the gradients that its mask updates need."""
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
        exact: "end" where the count floats and is exact only at the end.
        moves: Whether masks change during training.
        needs: What it draws on beside the weights: "grad", "data", "loss".

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
    """What is known of a method.

    Args:
        name: As in `list_methods()`.

    Returns:
        Its class, paper, family and needs.

    Raises:
        ValueError: There is no such method; the message names the nearest.
    """
    if not _is_method(name):
        raise ValueError(f"there is no method {shorten(name)}: {nearest(name, _METHODS)}")
    return _METHODS[name]


def settings_of(cls: type) -> dict[str, Any]:
    """The hyper-parameters of a method class with their types: its own, and those of its plan.

    Args:
        cls: The class of a method, such as `method_info("rpg").cls`.

    Returns:
        Type hints by name. A method takes those of its plan beside its own: `every`, `prune_end`, …
    """
    plan = type(cls.plan)  # type: ignore[attr-defined]
    hints = {**_hints(plan), **_hints(cls)}
    return {name: hints[name] for name in (*_fields(cls), *_fields(plan))}


def check_choices(settings: Any) -> None:
    """Raise where a field that is declared as a `Literal` holds something else.

    Args:
        settings: A method or a plan.

    Raises:
        ValueError: A field holds a value that is not allowed.
    """
    hints = _hints(type(settings))
    for name in _fields(type(settings)):
        hint = hints[name]
        if get_origin(hint) is Literal and getattr(settings, name) not in get_args(hint):
            allowed = " or ".join(map(repr, get_args(hint)))
            raise ValueError(f"{name}={getattr(settings, name)!r} is unknown: use {allowed}")


def route_to_plan(cls: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Put the settings that are the plan's (`every`, `prune_end`, …) into `plan`, where they were given beside it.

    Args:
        cls: The class of a method.
        settings: What it was called with.

    Returns:
        Settings for the constructor, with the plan's in `plan`.
    """
    own = {key: value for key, value in settings.items() if key in _fields(cls)}
    plan = own.get("plan", getattr(cls, "plan", None))
    flat = {key: value for key, value in settings.items() if key not in own}
    if not flat or plan is None or not flat.keys() <= set(_fields(type(plan))):
        return dict(settings)  # an unknown name: the constructor says so
    return {**own, "plan": replace(plan, **flat)}


def create(cls: type, hyper: Mapping[str, Any]) -> Any:
    """An instance with these hyper-parameters; an unknown one is an error that names the nearest.

    Args:
        cls: The class of a method.
        hyper: Its hyper-parameters and those of its plan.

    Raises:
        ValueError: One of them is unknown.
    """
    known = list(settings_of(cls))
    for key in hyper:
        if key not in known:
            raise ValueError(f"{cls.info.name} has no hyper-parameter {key!r}: {nearest(key, known)}")  # type: ignore[attr-defined]
    return cls(**hyper)


def _hints(cls: type) -> dict[str, Any]:
    try:
        return get_type_hints(cls)
    except NameError:  # a plug-in that imports names for type checkers only
        return dict.fromkeys(_fields(cls), Any)


def _fields(cls: type) -> list[str]:
    return [f.name for f in fields(cls) if f.init]


def settings_for(name: str, hyper: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one method: `rigl={"every": 10}` is for the method of that name alone, and wins.

    Those of other methods are checked as well, so that a sweep does not stop at its last method for a misspelt name.

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
    """Make an extra by name.

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
    known = _fields(_EXTRAS[name])
    if unknown := [option for option in options if option not in known]:
        raise ValueError(f"{name} has no option {unknown[0]!r}: {nearest(unknown[0], known)}")
    return _EXTRAS[name](**options)


def _is_method(name: str) -> bool:
    """Whether there is a method of this name: its module alone is loaded, or all where no module is named so."""
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
        except Exception as error:  # a broken plug-in must not take the built-in methods with it
            warnings.warn(f"plug-in {plugin.value} is left out ({type(error).__name__}: {error})", stacklevel=3)
