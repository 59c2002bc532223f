"""Run folders as plain values: what was asked for, what was measured, on what."""

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

# What the page shows of an epoch's line; other keys, and values that are no numbers, are left out.
_EPOCH = ("epoch", "step", "train_loss", "test_loss", "lr", "sparsity", "seconds")
# What a task's accuracy is called in its lines, and on the page.
_ACCURACY = {"test_top1": "Test accuracy", "test_box_ap": "AP of boxes"}


class NoRun(RunError):
    """A path that holds no run."""

    exit_code = 2


def find(paths: Iterable[str | Path]) -> list[Path]:
    """Run folders, given as such or as the folder they are in; finished or not, each once."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        folders = [path] if (path / RECIPE).is_file() else sorted(file.parent for file in path.glob(f"*/{RECIPE}"))
        if not folders:
            raise NoRun(f"{path} holds no run: give a run folder that has a {RECIPE}, or a folder of such folders.")
        found.update((folder.resolve(), folder) for folder in folders)
    return list(found.values())


def read_run(path: Path) -> dict[str, Any]:
    """One run without its weights."""
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
    """What a recipe's settings would be if it did not say them; settings that must be said are left out."""
    found = _section_defaults(Recipe)
    method = _table(recipe, "method").get("name")
    if isinstance(method, str):
        with contextlib.suppress(KeyError, ValueError, TypeError):  # a method of another version
            cls = method_info(method.partition("+")[0]).cls
            found["method"] = {f.name: f.default for f in fields(cls) if f.init and f.default is not MISSING}
    return found


def _section_defaults(section: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, entry in section.model_fields.items():
        if isinstance(entry.annotation, type) and issubclass(entry.annotation, BaseModel):
            found[name] = _section_defaults(entry.annotation)
        elif not entry.is_required():
            found[name] = entry.get_default(call_default_factory=True)
    return found


def stamp(path: Path) -> tuple[Any, ...]:
    """Changes whenever a file that `read_run` reads does."""
    return tuple(stamp_of(path / name) for name in (RECIPE, ENVIRONMENT, METRICS, RESULT, LATENCY))


def stamp_of(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def flatten(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    """Nested tables as `a.b.c` and text."""
    if isinstance(value, Mapping) and (value or not prefix):
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, (list, tuple)):
        yield prefix, ", ".join(map(str, value)) or "none"
    else:
        yield prefix, "none" if value is None or value == {} else str(value)


def finite(value: Any) -> int | float | None:
    """A number that JSON knows, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value


def _table(recipe: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = recipe.get(key)
    return value if isinstance(value, Mapping) else {}


def _setting(recipe: Mapping[str, Any], path: Path) -> str:
    """Of an unfinished run: the same as its result will say, so that its seeds are found together."""
    try:
        return fingerprint(Recipe.model_validate({**recipe, "seed": 0}))
    except ValueError:  # written by another version
        return path.name
