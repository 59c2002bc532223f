"""Reads run folders to plain values: recipe, metrics, result, environment."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from rankprune.core.method import method_info
from rankprune.lab.bench.latency import LATENCY
from rankprune.lab.errors import RunError
from rankprune.lab.recipes.load import fingerprint
from rankprune.lab.recipes.schema import Recipe
from rankprune.lab.recipes.yaml_file import read
from rankprune.lab.runs.run_folder import ENVIRONMENT, METRICS, RECIPE, RESULT, RunFolder

from pydantic import BaseModel  # isort: skip  (schema.py says how to install it)

# The metrics of an epoch that the page shows; other keys, and values that are not numbers, are left out.
_EPOCH = ("epoch", "step", "train_loss", "test_loss", "lr", "sparsity", "seconds")
# The accuracy's key in the metrics of each kind of task, and its title on the page.
_ACCURACY = {"test_top1": "Test accuracy", "test_box_ap": "AP of boxes"}


class NoRun(RunError):
    """A path without a run."""

    exit_code = 2


def find(paths: Iterable[str | Path]) -> list[Path]:
    """Find run folders, finished or not.

    Args:
        paths: Run folders and folders of run folders.

    Returns:
        The run folders, without duplicates.

    Raises:
        NoRun: A path holds no run.
    """
    folders_by_path: dict[Path, Path] = {}
    for path in map(Path, paths):
        folders = [path] if (path / RECIPE).is_file() else sorted(file.parent for file in path.glob(f"*/{RECIPE}"))
        if not folders:
            raise NoRun(f"{path} holds no run: give a run folder, which has a {RECIPE}, or a folder of run folders.")
        folders_by_path.update((folder.resolve(), folder) for folder in folders)
    return list(folders_by_path.values())


def read_run(path: Path) -> dict[str, Any]:
    """Read a run without its weights.

    Args:
        path: The run's folder.

    Returns:
        Plain values.

    Raises:
        RunError: The result or the environment is damaged.
        RecipeError: The recipe is damaged.
    """
    folder = RunFolder(path)
    recipe = read(path / RECIPE)
    result = folder.result()
    method = _table(recipe, "method")
    lines = [line for line in folder.metrics() if isinstance(line, dict)]
    accuracy = next((key for key in _ACCURACY if any(key in line for line in lines)), "test_top1")
    return {
        "id": path.resolve().name,
        "name": str(recipe.get("name", path.name)),
        "task": f"{_table(recipe, 'model').get('name', '?')} on {_table(recipe, 'data').get('name', '?')}",
        "method": str(method.get("name", "dense")),
        "seed": finite(recipe.get("seed")),
        "setting": _setting(recipe, path) if result is None else result.setting,
        "epochs": finite(recipe.get("epochs")),
        "target": finite(method.get("sparsity", 0.0)),
        "delta": finite(recipe.get("delta")) or 0.1,
        "result": None if result is None else result.to_dict(),
        "measure": _ACCURACY[accuracy],
        "metrics": [
            {
                **{key: finite(line.get(key)) for key in _EPOCH},
                "accuracy": finite(line.get(accuracy)),
                "at_target": line.get("at_target") is True,
            }
            for line in lines
        ],
        "recipe": dict(flatten(recipe)),
        "defaults": dict(flatten(defaults(recipe))),
        "environment": dict(flatten(folder.read_json(ENVIRONMENT) or {})),
    }


def defaults(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a recipe's settings; settings without a default are left out.

    Args:
        recipe: The recipe's values.

    Returns:
        Nested defaults, including those of the recipe's method.
    """
    values = _section_defaults(Recipe)
    method = _table(recipe, "method").get("name")
    if isinstance(method, str):
        with contextlib.suppress(KeyError, ValueError, TypeError):  # a method that this version does not have
            cls = method_info(method.partition("+")[0]).cls
            values["method"] = {f.name: f.default for f in fields(cls) if f.init and f.default is not MISSING}
    return values


def _section_defaults(section: type[BaseModel]) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    for name, entry in section.model_fields.items():
        if isinstance(entry.annotation, type) and issubclass(entry.annotation, BaseModel):
            defaults[name] = _section_defaults(entry.annotation)
        elif not entry.is_required():
            defaults[name] = entry.get_default(call_default_factory=True)
    return defaults


def stamp(path: Path) -> tuple[Any, ...]:
    """Return a value that changes whenever a file that `read_run` reads does.

    Args:
        path: The run's folder.

    Returns:
        Modification times and sizes.
    """
    return tuple(stamp_of(path / name) for name in (RECIPE, ENVIRONMENT, METRICS, RESULT, LATENCY))


def stamp_of(file: Path) -> tuple[int, int] | None:
    """Return modification time and size of a file.

    Args:
        file: The file.

    Returns:
        Both, or None if there is no such file.
    """
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def flatten(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    """Flatten nested values to dotted keys and text.

    Args:
        value: The values.
        prefix: Prefix of the keys.

    Yields:
        (`a.b.c`, text) of each value.
    """
    if isinstance(value, Mapping) and (value or not prefix):
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, (list, tuple)):
        yield prefix, ", ".join(map(_text, value)) or "none"
    else:
        yield prefix, "none" if value is None or value == {} else _text(value)


def _text(value: Any) -> str:
    """0.0 as "0": a recipe stores floats where a default may be written as an integer."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else str(value)


def finite(value: Any) -> int | float | None:
    """Return a number that JSON can hold.

    Args:
        value: Any value.

    Returns:
        The number; None if the value is not a finite number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value


def _table(recipe: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = recipe.get(key)
    return value if isinstance(value, Mapping) else {}


def _setting(recipe: Mapping[str, Any], path: Path) -> str:
    """The setting that an unfinished run's result will have, by which runs with other seeds are grouped."""
    try:
        return fingerprint(Recipe.model_validate({**recipe, "seed": 0}))
    except ValueError:  # written by another version
        return path.name
