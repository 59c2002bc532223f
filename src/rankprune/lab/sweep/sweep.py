"""Sweeps: from a YAML file to recipes, and from recipes to results."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankprune.lab.progress import Steps
from rankprune.lab.recipes.errors import RecipeError
from rankprune.lab.recipes.explain import explain
from rankprune.lab.recipes.load import fingerprint, load_recipe
from rankprune.lab.recipes.names import TASKS
from rankprune.lab.recipes.schema import Recipe, Section
from rankprune.lab.recipes.yaml_file import read
from rankprune.lab.runs.run_folder import RunFolder
from rankprune.lab.training.callbacks import Callback
from rankprune.lab.training.run import Outcome

from .local_runner import LocalRunner
from .ray_runner import RayRunner
from .runner import Order, Reply, Runner

from pydantic import Field, ValidationError  # isort: skip  (schema.py says how to install it)


SWEEPS = TASKS.parent / "sweeps"


class SweepFile(Section):
    """`recipes` by name, and the product task x methods x sparsities; each with every seed and value of `vary`."""

    recipes: tuple[str, ...] = ()
    task: str | None = None
    methods: tuple[str, ...] = ()
    sparsities: tuple[float, ...] = ()  # in percent, as in the names of recipes
    seeds: tuple[int, ...] = (0,)
    overrides: tuple[str, ...] = ()  # key=value, for every run
    vary: dict[str, list[Any]] = Field(default_factory=dict)  # dotted key: its values


@dataclass
class Sweep:
    """What became of the runs of a sweep."""

    outcomes: list[Outcome] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)  # name of the run: what happened


def read_sweep(path: str | Path, overrides: Sequence[str] = ()) -> list[Recipe]:
    """The runs a file (or a sweep of the package, by name) asks for, all checked before the first one starts."""
    named = SWEEPS / f"{path}.yaml"
    try:
        file = SweepFile.model_validate(read(named if named.is_file() else Path(path)))
    except ValidationError as error:
        raise RecipeError(f"{path}: {explain(error, SweepFile)}") from None
    recipes = [
        load_recipe(name, [*file.overrides, f"seed={seed}", *varied, *overrides])
        for name in _names(file, path)
        for varied in itertools.product(*(_overrides(key, values, path) for key, values in file.vary.items()))
        for seed in file.seeds
    ]
    if not recipes:
        raise RecipeError(f"{path} asks for no run: give recipes, or task, methods and sparsities.")
    # Each once: an override may have made several the same, which would count as so many seeds.
    return list({fingerprint(recipe): recipe for recipe in recipes}.values())


def _overrides(key: str, values: list[Any], path: str | Path) -> list[str]:
    try:
        return [f"{key}={json.dumps(value)}" for value in values]
    except TypeError:  # YAML knows dates
        raise RecipeError(f"{path}: vary.{key}={values} holds what is neither number nor text: quote it.") from None


def _names(file: SweepFile, path: str | Path) -> list[str]:
    if bool(file.task) != bool(file.methods):
        raise RecipeError(f"{path}: task and methods go together, and sparsities with them.")
    if (bare := [method for method in file.methods if method != "dense"]) and not file.sparsities:
        raise RecipeError(f"{path}: sparsities is missing, and {bare[0]} is of one: sparsities: [90], for example.")
    rows = [
        f"{file.task}-{method}" if method == "dense" else f"{file.task}-{method}-{percent:g}"
        for method in file.methods
        for percent in (file.sparsities if method != "dense" else (0.0,))
    ]
    return [*file.recipes, *rows]


def run_sweep(
    recipes: Sequence[Recipe],
    out: str | Path = "runs",
    callback: Callback | None = None,
    jobs: int | None = None,
    ray: str | None = None,
) -> Sweep:
    """Train recipes; finished runs are only read, unfinished ones resumed, and one that fails does not stop the others.

    Args:
        recipes: What to train.
        out: The folder of run folders.
        callback: Told about progress.
        jobs: Runs at a time: 1 by default, on Ray as many as fit.
        ray: Address of a Ray cluster ("local" starts one); None runs local processes.

    Returns:
        The outcomes in the order of `recipes`, and the failures by name.

    Raises:
        RecipeError: `jobs` is below 1.
        Interrupted: A signal asked to stop; what ran has been saved.
    """
    runner = make_runner(callback, jobs, ray)
    orders = [Order(recipe, Path(out)) for recipe in recipes]
    known = {order.folder: RunFolder(order.folder).result() for order in orders}
    outcomes = {path: Outcome(path, result, found=True) for path, result in known.items() if result is not None}
    waiting = [order for order in orders if order.folder not in outcomes]
    failures: dict[str, str] = {}
    steps, found = Steps(len(waiting)), len(outcomes)
    several = ray is not None or (jobs or 1) > 1  # of a single one the callback hears step by step

    def done(order: Order, reply: Reply) -> None:
        if reply.result is None:
            failures[order.name] = reply.failure
        else:
            outcomes[order.folder] = Outcome(order.folder, reply.result, reply.found)
        if several and callback is not None:
            text = reply.failure if reply.result is None else f"{reply.result.accuracy_last:.2%}"
            ended = len(outcomes) - found + len(failures)
            callback.message(f"{order.name}: {text}; {found + ended} of {len(orders)}, {steps.left(ended)}.")

    due = iter(waiting)
    runner.run(lambda idle: next(due, None), done)
    return Sweep([outcomes[order.folder] for order in orders if order.folder in outcomes], failures)


def make_runner(callback: Callback | None = None, jobs: int | None = None, ray: str | None = None) -> Runner:
    """The runner that the options of a command ask for."""
    if jobs is not None and jobs < 1:
        raise RecipeError(f"jobs={jobs} leaves nobody to work: give 1 or more.")
    return LocalRunner(callback, jobs or 1) if ray is None else RayRunner(jobs, ray)
