"""Loads a recipe by name or path, applies overrides and checks it; every mistake is reported in one sentence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rankprune._util import closest, nearest, shorten
from rankprune.core.method import list_methods, method_info
from rankprune.core.registry import settings_for
from rankprune.core.settings import settings_of
from rankprune.extras import create_extra, list_extras

from . import yaml_file
from .errors import RecipeError
from .explain import explain, reason
from .names import base_method, find, list_recipes, merge, settings, task, tasks
from .schema import Method, Recipe, is_number_type

from pydantic import TypeAdapter, ValidationError  # isort: skip  (schema.py says how to install it)

# Keys that do not change the outcome: the location of the data, parallelism and how often the run is saved.
_NOT_IN_HASH = {"data": {"root", "workers", "download"}, "save": True, "parallel": True}


def load_recipe(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Load a recipe.

    Args:
        name: One of `list_recipes()`, or the path of a YAML file.
        overrides: Each is `key=value` with a dotted key, such as "optimizer.lr=0.05".

    Returns:
        The checked recipe.

    Raises:
        RecipeError: There is no such recipe, or a value is invalid.
    """
    values = raw(str(name))
    for override in overrides:
        values = merge(values, parse_override(override))
    return check(values)


def raw(name: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the values of a recipe with its bases merged, not yet checked.

    Args:
        name: Name or path of the recipe.
        seen: Recipes whose base it is, to detect a cycle.

    Returns:
        The values.

    Raises:
        RecipeError: There is no such recipe, or it is its own base.
    """
    if name in seen:
        raise RecipeError(f"The recipe {name} is its own base: {' -> '.join([*seen, name])}.")
    row = find(name)
    if row is not None:
        return {"name": name, **settings(row)}
    if name in tasks():
        return {"name": name, **{k: v for k, v in task(name).items() if k != "family"}}
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        close = closest(name, list_recipes())
        way_out = f"did you mean {close!r}?" if close else "`rankprune recipes` lists them, and a path ends in .yaml."
        if ":" in name:
            way_out = f"to train a model, name a recipe and write --model {name} after it."
        raise RecipeError(f"There is no recipe {name!r}: {way_out}")
    own = yaml_file.read(path)
    base = own.pop("base", None)
    if base is None:
        return {"name": path.stem, **own}
    if not isinstance(base, str):
        raise RecipeError(f"base={shorten(base)} in {path} is not the name of a recipe.")
    beside = path.parent / base  # a path is relative to the file that names it
    values = raw(str(beside) if base.endswith((".yaml", ".yml")) else base, (*seen, name))
    return merge({**values, "name": path.stem}, own)


def parse_override(text: str) -> dict[str, Any]:
    """Parse an override; its value is read as YAML, so it has a type.

    Args:
        text: Such as "optimizer.lr=0.05".

    Returns:
        Nested values, such as {"optimizer": {"lr": 0.05}}.

    Raises:
        RecipeError: The text is not `key=value`.
    """
    key, equals, value = text.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        raise RecipeError(f"{text!r} is not an override: write key=value, for example optimizer.lr=0.05.")
    parsed: Any = yaml_file.parse(value, f"The value of {key}")
    for part in reversed(parts):
        parsed = {part: parsed}
    return parsed


def check(values: dict[str, Any]) -> Recipe:
    """Validate the values of a recipe.

    Args:
        values: The merged values.

    Returns:
        The recipe.

    Raises:
        RecipeError: One sentence that says what is wrong.
    """
    name = shorten(values.get("name", "the recipe")).strip("'")
    if _for_other_methods(values.get("method")):  # settings of a sweep's methods, in its dense run
        values = {**values, "method": None}
    method = values.get("method")
    if isinstance(method, dict) and method and "name" not in method:  # a setting for methods, in a dense run
        key = next(iter(method))
        raise RecipeError(
            f"{name}: method.{key} is set and method.name is missing: name the method, or write method.METHOD.{key} "
            "to change only the runs of one method."
        )
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"{name}: {explain(error, Recipe)}") from None
    if recipe.method is not None:
        recipe = recipe.model_copy(update={"method": _checked(recipe.method, name)})
    return recipe


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Return every key of a recipe as plain values.

    Args:
        recipe: The recipe.

    Returns:
        A mapping that JSON can hold.
    """
    return recipe.model_dump(mode="json")


def fingerprint(recipe: Recipe) -> str:
    """Hash everything that decides the outcome of a run.

    Args:
        recipe: The recipe.

    Returns:
        Eight hexadecimal digits.
    """
    leave_out: dict[str, Any] = dict(_NOT_IN_HASH)
    if recipe.data.name in ("coco", "imagefolder"):  # the folder decides which images these are
        leave_out["data"] = {"workers", "download"}
    text = json.dumps(recipe.model_dump(mode="json", exclude=leave_out), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _for_other_methods(method: Any) -> bool:
    """Whether `method` holds only settings for methods and extras by name: rigl: {every: 5}."""
    if not isinstance(method, dict) or not method:
        return False
    names = {*list_methods(), *list_extras()}
    return all(key in names and isinstance(value, dict) for key, value in method.items())


def _checked(method: Method, name: str) -> Method:
    """The method with its hyper-parameters converted to the types of its class."""
    try:
        cls = method_info(base_method(method.name)).cls
        hyper = settings_for(base_method(method.name), method.hyper)
        extras = {extra: hyper.pop(extra, {}) for extra in method.name.split("+")[1:]}
        extras |= {key: hyper.pop(key) for key in list_extras() if isinstance(hyper.get(key), Mapping)}
        for extra, options in extras.items():
            create_extra(extra, **options)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{name}: {error}") from None
    hints = {key: hint for key, hint in settings_of(cls).items() if key not in ("sparsity", "plan")}
    typed: dict[str, Any] = {}
    for key, value in hyper.items():
        if key not in hints:
            known = [*hints, *Method.model_fields]
            raise RecipeError(f"{name}: {method.name} has no hyper-parameter {shorten(key)}: {nearest(key, known)}")
        if isinstance(value, bool) and is_number_type(hints[key]):
            raise RecipeError(f"{name}: method.{key}={value} is wrong: it should be a number.")
        try:
            typed[key] = TypeAdapter(hints[key]).validate_python(value)
        except ValidationError as error:
            raise RecipeError(f"{name}: method.{key}={shorten(value)} is wrong: {reason(error.errors()[0])}.") from None
    try:
        cls(method.sparsity, **typed)
    except ValueError as error:  # the class checks what its types cannot express
        raise RecipeError(f"{name}: method.{error}.") from None
    used = {extra: extras[extra] for extra in method.name.split("+")[1:] if extra in method.hyper}
    return Method(name=method.name, sparsity=method.sparsity, dense=method.dense, **typed, **used)
