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
    """`recipes` by name and all combinations of task, methods and sparsities, each with all seeds and `vary` values."""

    recipes: tuple[str, ...] = ()
    task: str | None = None
    methods: tuple[str, ...] = ()
    sparsities: tuple[float, ...] = ()  # in percent, as in the names of recipes
    seeds: tuple[int, ...] = (0,)
    overrides: tuple[str, ...] = ()  # key=value for every run
    vary: dict[str, list[Any]] = Field(default_factory=dict)  # values of each dotted key


@dataclass
class Sweep:
    """The results and failures of a sweep."""

    outcomes: list[Outcome] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)  # message by name of the run


def read_sweep(path: str | Path, overrides: Sequence[str] = ()) -> list[Recipe]:
    """Read a sweep file and check all of its recipes.

    Args:
        path: A YAML file, or the name of a sweep of the package.
        overrides: `key=value` for every run, after those of the file.

    Returns:
        The recipes, without duplicates.

    Raises:
        RecipeError: The file or a recipe is invalid, or there is no run in it.
    """
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
    # Overrides may make several recipes equal; duplicates would count as additional seeds.
    return list({fingerprint(recipe): recipe for recipe in recipes}.values())


def _overrides(key: str, values: list[Any], path: str | Path) -> list[str]:
    try:
        return [f"{key}={json.dumps(value)}" for value in values]
    except TypeError:  # YAML has dates
        raise RecipeError(f"{path}: vary.{key}={values} has a value that is not a number or text: quote it.") from None


def _names(file: SweepFile, path: str | Path) -> list[str]:
    if bool(file.task) != bool(file.methods):
        raise RecipeError(f"{path}: task and methods must be given together, with sparsities.")
    if (bare := [method for method in file.methods if method != "dense"]) and not file.sparsities:
        raise RecipeError(f"{path}: sparsities is missing, and {bare[0]} needs it: sparsities: [90], for example.")
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
        recipes: The recipes to train.
        out: Folder that holds the run folders.
        callback: Receives the progress.
        jobs: Number of runs at a time; by default 1, on Ray as many as fit.
        ray: Address of a Ray cluster ("local" starts one); None runs local processes.

    Returns:
        The outcomes in the order of `recipes`, and the failures by name.

    Raises:
        RecipeError: `jobs` is below 1.
        Interrupted: A signal asked to stop; the active runs have been saved.
    """
    runner = make_runner(callback, jobs, ray)
    orders = [Order(recipe, Path(out)) for recipe in recipes]
    known = {order.folder: RunFolder(order.folder).result() for order in orders}
    outcomes = {path: Outcome(path, result, finished_before=True) for path, result in known.items() if result}
    waiting = [order for order in orders if order.folder not in outcomes]
    failures: dict[str, str] = {}
    steps, known_before = Steps(len(waiting)), len(outcomes)
    several = ray is not None or (jobs or 1) > 1  # the callback follows a single run step by step

    def done(order: Order, reply: Reply) -> None:
        if reply.result is None:
            failures[order.name] = reply.failure
        else:
            outcomes[order.folder] = Outcome(order.folder, reply.result, reply.finished_before)
        if several and callback is not None:
            text = reply.failure if reply.result is None else f"{100 * reply.result.accuracy_last:.2f} %"
            ended = len(outcomes) - known_before + len(failures)
            callback.message(f"{order.name}: {text}; {known_before + ended} of {len(orders)}, {steps.left(ended)}.")

    due = iter(waiting)
    runner.run(lambda idle: next(due, None), done)
    return Sweep([outcomes[order.folder] for order in orders if order.folder in outcomes], failures)


def make_runner(callback: Callback | None = None, jobs: int | None = None, ray: str | None = None) -> Runner:
    """Create the runner for the options of a command.

    Args:
        callback: Receives the progress.
        jobs: Number of runs at a time; by default 1, on Ray as many as fit.
        ray: Address of a Ray cluster ("local" starts one); None for local processes.

    Returns:
        The runner.

    Raises:
        RecipeError: `jobs` is below 1.
    """
    if jobs is not None and jobs < 1:
        raise RecipeError(f"jobs={jobs} is too few: give 1 or more.")
    return LocalRunner(callback, jobs or 1) if ray is None else RayRunner(jobs, ray)
