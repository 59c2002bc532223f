"""Names of recipes. A file in `tasks/` with a `family` stands for TASK-dense and TASK-ROW-PERCENT.

A family has `sparsities` (in percent) and `methods`: each row's hyper-parameters under its name, which is that of a
method unless they give another (`powerprop-erk: {name: powerprop, distribution: erk}`). Where rows are trained
otherwise than their task, `settings` says how; `only` names the sparsities of rows that do not have all.
"""

from __future__ import annotations

import fnmatch
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from . import yaml_file

TASKS = Path(__file__).parent / "tasks"


class Row(NamedTuple):
    """One member of a family."""

    task: str
    method: str | None  # as the family calls it, with extras; None: dense
    sparsity: float | None


@lru_cache
def task(name: str) -> dict[str, Any]:
    """A task's own lines laid over those of its base."""
    own = yaml_file.read(TASKS / f"{name}.yaml")
    return merge(task(own["base"]), {k: v for k, v in own.items() if k != "base"}) if "base" in own else own


def tasks() -> list[str]:
    """Tasks that stand for recipes; those with a leading underscore are only bases."""
    return sorted(path.stem for path in TASKS.glob("*.yaml") if not path.stem.startswith("_"))


def list_recipes(pattern: str = "*") -> list[str]:
    """Names of the recipes that match a shell pattern."""
    names = []
    for one in tasks():
        family = task(one)["family"]
        for method in family["methods"]:
            percents = family.get("only", {}).get(method, family["sparsities"])
            rows = [f"{one}-{method}-{percent}" for percent in percents]
            names += [f"{one}-dense"] if method == "dense" else rows
    return fnmatch.filter(names, pattern)


def find(name: str) -> Row | None:
    """The row a name stands for; the percentage may be any between 0 and 100."""
    for one in sorted(tasks(), key=len, reverse=True):
        if not name.startswith(f"{one}-"):
            continue
        methods = task(one)["family"]["methods"]
        method, _, percent = name.removeprefix(f"{one}-").rpartition("-")
        if not method and percent == "dense" and "dense" in methods:
            return Row(one, None, None)
        share = _share(percent)
        if base_method(method) in methods and method != "dense" and share is not None:
            return Row(one, method, share)
    return None


def settings(row: Row) -> dict[str, Any]:
    """The recipe of a row, as it would stand in a file."""
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
    """The method of a name that adds extras to it: rpg of rpg+ham."""
    return name.partition("+")[0]


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`, mapping by mapping; neither is changed."""
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
