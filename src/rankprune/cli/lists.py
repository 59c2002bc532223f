"""`rankprune recipes`, `rankprune methods` and `rankprune doctor`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rankprune.core.summary import table
from rankprune.lab.recipes.names import list_recipes, task, tasks

from .output import emit


def run(args: argparse.Namespace) -> int:
    """List recipes or methods, or show what is installed.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    if args.command == "recipes":
        return _recipes(args)
    return _methods(args) if args.command == "methods" else _doctor(args)


def _recipes(args: argparse.Namespace) -> int:
    """List recipes by pattern; without one, a line for each task."""
    names = matching("recipe", args.pattern or "*", list_recipes)
    if args.pattern is not None:
        return emit(args.json, names, "\n".join(names))
    rows = []
    for name in tasks():
        family = task(name)["family"]
        methods = [method for method in family["methods"] if method != "dense"]
        sparsities = ", ".join(f"{percent:g}" for percent in family["sparsities"])
        rows.append((name, sparsities, f"{len(methods)}"))
    lines = table(("task", "sparsities in %", "methods"), rows, right="methods")
    lines += [
        "",
        f"{len(names):,} recipes, named TASK-dense and TASK-METHOD-SPARSITY: fashion-feather-98, for example.",
        "rankprune recipes 'fashion-*' lists those of a task; any sparsity between 0 and 100 can be written.",
    ]
    return emit(args.json, names, "\n".join(lines))


def matching(what: str, pattern: str, search: Callable[[str], list[str]]) -> list[str]:
    """Return the names that match a pattern; the error for none suggests a pattern that matches.

    Args:
        what: What is named: recipe, model or method.
        pattern: A shell pattern.
        search: Returns the names that match a pattern.

    Returns:
        At least one name.

    Raises:
        ValueError: No name matches.
    """
    if names := search(pattern):
        return names
    wider = f"*{pattern.strip('*')}*"
    if search(wider):
        raise ValueError(f"No {what} is named {pattern!r}: did you mean the pattern '{wider}'?")
    raise ValueError(f"No {what} matches {pattern!r}: `rankprune {what}s` lists what there is.")


def _methods(args: argparse.Namespace) -> int:
    from rankprune.core.method import list_methods, method_info

    infos = [method_info(name) for name in matching("method", args.pattern, list_methods)]
    values = [
        {"name": i.name, "family": i.family, "needs": sorted(i.needs), "moves": i.moves, "cost": i.cost.step,
         "exact": i.exact, "paper": i.paper, "description": i.description}
        for i in infos
    ]  # fmt: skip
    rows = [
        (i.name, i.family, ", ".join(sorted(i.needs)) or "-", "move" if i.moves else "fixed", i.cost.step, i.paper)
        for i in infos
    ]
    lines = table(("method", "family", "needs", "masks", "step", "paper"), rows)
    notes = [
        "needs: data and loss at attach, or gradients of the pruned weights (grad)",
        "masks: whether they change during training (move) or not (fixed)",
        "step: FLOPs of a training step relative to a dense step, where f is the density; mask updates that use",
        "gradients need a dense backward pass",
    ]
    return emit(args.json, values, "\n".join([*lines, "", *notes]))


def _doctor(args: argparse.Namespace) -> int:
    from rankprune.lab.runs.environment import environment, extras

    here, optional = environment(), extras()
    lines = [f"{key:<12} {value}" for key, value in here.items() if key != "packages"]
    lines += [f"{key:<12} {value}" for key, value in here["packages"].items()]
    engine = _engine()
    lines.append(f"{'engine':<12} {engine}")
    for extra in optional:
        missing = [name for name, version in extra["packages"].items() if version is None]
        state = f"missing {', '.join(missing)}: pip install 'rankprune[{extra['extra']}]'" if missing else "installed"
        lines.append(f"{extra['extra']:<12} {extra['brings']}: {state}")
    return emit(args.json, {**here, "engine": engine, "extras": optional}, "\n".join(lines))


def _engine() -> str:
    """Whether the sparse engine can be built, without building it."""
    from rankprune.engine.backend.build import NoCompiler, compiler

    try:
        return f"the sparse engine, built on first use with {' '.join(compiler())}"
    except NoCompiler as error:
        return f"the sparse engine is not available: {error}"
