"""`rankprune recipes`, `rankprune methods` and `rankprune doctor`."""

from __future__ import annotations

import argparse

from rankprune.lab.recipes.names import list_recipes

from .output import emit


def run(args: argparse.Namespace) -> int:
    """List recipes or methods, or show what is installed.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    if args.command == "recipes":
        names = _some("recipe", args.pattern, list_recipes(args.pattern))
        return emit(args.json, names, "\n".join(names))
    return _methods(args) if args.command == "methods" else _doctor(args)


def _some(what: str, pattern: str, found: list[str]) -> list[str]:
    """Return the names, or raise if there are none."""
    if not found:
        raise ValueError(f"No {what} matches {pattern!r}: `rankprune {what}s` lists all; '*rpg*' is a pattern.")
    return found


def _methods(args: argparse.Namespace) -> int:
    from rankprune.core.method import list_methods, method_info
    from rankprune.core.summary import table

    infos = [method_info(name) for name in _some("method", args.pattern, list_methods(args.pattern))]
    found = [
        {"name": i.name, "family": i.family, "needs": sorted(i.needs), "moves": i.moves, "cost": i.cost.step,
         "exact": i.exact, "paper": i.paper, "description": i.description}
        for i in infos
    ]  # fmt: skip
    rows = [
        (i.name, i.family, ", ".join(sorted(i.needs)) or "-", "move" if i.moves else "fixed", i.cost.step, i.paper)
        for i in infos
    ]
    lines = table(("method", "family", "needs", "masks", "step", "paper"), rows)
    note = (
        "step: FLOPs of a training step relative to a dense step, where f is the density; "
        "mask updates that use gradients need a dense backward pass."
    )
    return emit(args.json, found, "\n".join([*lines, "", note]))


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
