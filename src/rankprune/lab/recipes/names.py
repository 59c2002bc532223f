"""Names of recipes. A file in `tasks/` with a `family` defines the recipes TASK-dense and TASK-METHOD-PERCENT.

A family has `sparsities` (in percent) and `methods`, which maps each row's name to its hyper-parameters. The row's name
is the method's name unless `name` gives another one (`powerprop-erk: {name: powerprop, distribution: erk}`).
`settings` holds what some rows change in their task; `only` lists the sparsities of rows that do not have all of them.
"""

from __future__ import annotations

import fnmatch
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from . import yaml_file

TASKS = Path(__file__).parent / "tasks"
SMOKE = "smoke-"  # begins the names of recipes that are reduced to a few steps


class Row(NamedTuple):
    """One recipe of a family."""

    task: str
    method: str | None  # the row's name in the family, with extras such as rpg+ham; None: dense
    sparsity: float | None


@lru_cache
def task(name: str) -> dict[str, Any]:
    """Read a task and merge it into its base.

    Args:
        name: Name of a file in `tasks/`, without .yaml.

    Returns:
        Its values, including `family`.
    """
    own = yaml_file.read(TASKS / f"{name}.yaml")
    return merge(task(own["base"]), {k: v for k, v in own.items() if k != "base"}) if "base" in own else own


def tasks() -> list[str]:
    """Return the tasks that have recipes; names with a leading underscore are only bases of others."""
    return sorted(path.stem for path in TASKS.glob("*.yaml") if not path.stem.startswith("_"))


def list_recipes(pattern: str = "*") -> list[str]:
    """Return the names of the recipes that match a shell pattern.

    Args:
        pattern: Such as "fashion-*".

    Returns:
        The names, by task and method.
    """
    names = []
    for name in tasks():
        family = task(name)["family"]
        for method in family["methods"]:
            percents = family.get("only", {}).get(method, family["sparsities"])
            rows = [f"{name}-{method}-{percent}" for percent in percents]
            names += [f"{name}-dense"] if method == "dense" else rows
    return fnmatch.filter(names, pattern)


def find(name: str) -> Row | None:
    """Parse the name of a recipe.

    Args:
        name: TASK-dense or TASK-METHOD-PERCENT, with any percentage between 0 and 100.

    Returns:
        The row, or None if there is no such task or method.
    """
    for known in sorted(tasks(), key=len, reverse=True):
        if not name.startswith(f"{known}-"):
            continue
        methods = task(known)["family"]["methods"]
        method, _, percent = name.removeprefix(f"{known}-").rpartition("-")
        if not method and percent == "dense" and "dense" in methods:
            return Row(known, None, None)
        share = _share(percent)
        if base_method(method) in methods and method != "dense" and share is not None:
            return Row(known, method, share)
    return None


def settings(row: Row) -> dict[str, Any]:
    """Return the values of a row's recipe, as a recipe file would hold them.

    Args:
        row: The row.

    Returns:
        The values, not yet checked.
    """
    values = dict(task(row.task))
    family = values.pop("family")
    called, plus, extras = (row.method or "dense").partition("+")
    values = merge(values, family.get("settings", {}).get(called, {}))
    if row.method is None:
        return {**values, "method": None}
    hyper = family["methods"][called] or {}
    name = hyper.get("name", called) + plus + extras
    return {**values, "method": {**hyper, "name": name, "sparsity": row.sparsity}}


def base_method(name: str) -> str:
    """Return the method of a name with extras: "rpg" for "rpg+ham".

    Args:
        name: A method, possibly with extras.

    Returns:
        The name of the method.
    """
    return name.partition("+")[0]


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge two mappings recursively; neither is changed.

    Args:
        base: The values to start from.
        over: The values that take precedence.

    Returns:
        A new mapping.
    """
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = merge(base[key], value) if both else value
    return merged


def _share(percent: str) -> float | None:
    try:
        share = float(Decimal(percent) / 100)  # 99.9 is 0.999, not 0.9990000000000001
    except InvalidOperation:
        return None
    return share if 0 < share < 1 else None
