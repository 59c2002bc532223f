"""A recipe by name or path, with overrides, resolved and checked; every mistake is one sentence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rankprune._util import closest, nearest, shorten
from rankprune.core.method import list_methods, method_info
from rankprune.core.registry import settings_for, settings_of
from rankprune.extras import create_extra, list_extras

from . import yaml_file
from .errors import RecipeError
from .explain import explain, reason
from .names import base_method, find, list_recipes, merge, settings, task, tasks
from .schema import Method, Recipe, counts

from pydantic import TypeAdapter, ValidationError  # isort: skip  (schema.py says how to install it)

# Where data lie, how a run is spread over processes and how often it is saved do not make it another run.
_NOT_IN_HASH = {"data": {"root", "workers", "download"}, "save": True, "parallel": True}


def load_recipe(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """`name` is one of `list_recipes()` or a YAML file; an override is `key=value`, the key dotted."""
    values = raw(str(name))
    for override in overrides:
        values = merge(values, parse_override(override))
    return check(values)


def raw(name: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """The values of a recipe with its bases resolved, not yet checked."""
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
        raise RecipeError(f"There is no recipe {name!r}: {way_out}")
    own = yaml_file.read(path)
    base = own.pop("base", None)
    if base is None:
        return {"name": path.stem, **own}
    if not isinstance(base, str):
        raise RecipeError(f"base={shorten(base)} in {path} is not the name of a recipe.")
    beside = path.parent / base  # a file is named from where its heir lies
    values = raw(str(beside) if base.endswith((".yaml", ".yml")) else base, (*seen, name))
    return merge({**values, "name": path.stem}, own)


def parse_override(text: str) -> dict[str, Any]:
    """`optimizer.lr=0.05` as {"optimizer": {"lr": 0.05}}; the value is read as YAML, so it has a type."""
    key, equals, value = text.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        raise RecipeError(f"{text!r} is no override: write key=value, for example optimizer.lr=0.05.")
    parsed: Any = yaml_file.parse(value, f"The value of {key}")
    for part in reversed(parts):
        parsed = {part: parsed}
    return parsed


def check(values: dict[str, Any]) -> Recipe:
    """The recipe of these values, or one sentence that says what is wrong with them."""
    name = shorten(values.get("name", "the recipe")).strip("'")
    if _for_other_methods(values.get("method")):  # a sweep's settings, met by its dense run
        values = {**values, "method": None}
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"{name}: {explain(error, Recipe)}") from None
    if recipe.method is not None:
        recipe = recipe.model_copy(update={"method": _checked(recipe.method, name)})
    return recipe


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Every key, as plain values."""
    return recipe.model_dump(mode="json")


def fingerprint(recipe: Recipe) -> str:
    """Eight hex digits of all that decides the outcome of a run."""
    leave_out: dict[str, Any] = dict(_NOT_IN_HASH)
    if recipe.data.name in ("coco", "imagefolder"):  # there the folder is the data set
        leave_out["data"] = {"workers", "download"}
    text = json.dumps(recipe.model_dump(mode="json", exclude=leave_out), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _for_other_methods(method: Any) -> bool:
    """Whether all that stands under `method` is settings for methods and extras by their names: rigl: {every: 5}."""
    if not isinstance(method, dict) or not method:
        return False
    names = {*list_methods(), *list_extras()}
    return all(key in names and isinstance(value, dict) for key, value in method.items())


def _checked(method: Method, name: str) -> Method:
    """The method with its hyper-parameters in the types of its class."""
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
        if isinstance(value, bool) and counts(hints[key]):
            raise RecipeError(f"{name}: method.{key}={value} is wrong: it should be a number.")
        try:
            typed[key] = TypeAdapter(hints[key]).validate_python(value)
        except ValidationError as error:
            raise RecipeError(f"{name}: method.{key}={shorten(value)} is wrong: {reason(error.errors()[0])}.") from None
    try:
        cls(method.sparsity, **typed)
    except ValueError as error:  # the class checks what a type cannot say
        raise RecipeError(f"{name}: method.{error}.") from None
    used = {extra: extras[extra] for extra in method.name.split("+")[1:] if extra in method.hyper}
    return Method(name=method.name, sparsity=method.sparsity, dense=method.dense, **typed, **used)
