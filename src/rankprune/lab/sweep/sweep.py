"""Many runs: from a YAML file to recipes, and from recipes to results."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankprune.lab.recipes.errors import RecipeError
from rankprune.lab.recipes.explain import explain
from rankprune.lab.recipes.load import fingerprint, load_recipe
from rankprune.lab.recipes.names import TASKS
from rankprune.lab.recipes.schema import Recipe, Section
from rankprune.lab.recipes.yaml_file import read
from rankprune.lab.training.folder import RunFolder
from rankprune.lab.training.run import Outcome
from rankprune.lab.training.watch import Watcher

from .local_trials import LocalTrials
from .ray_trials import RayTrials

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
    watcher: Watcher | None = None,
    jobs: int | None = None,
    ray: str | None = None,
) -> Sweep:
    """Finished runs are only read and unfinished ones resumed; a run that fails does not stop the others.

    Each run is a process of its own, `jobs` (1) at a time; or, with the address of a Ray cluster, a task of it.
    """
    if jobs is not None and jobs < 1:
        raise RecipeError(f"jobs={jobs} leaves nobody to work: give 1 or more.")
    watcher = watcher or Watcher()
    trials = LocalTrials(out, watcher, jobs or 1) if ray is None else RayTrials(out, watcher, jobs, ray)
    folders = [RunFolder.of(recipe, out) for recipe in recipes]
    before = [folder.result() for folder in folders]
    missing = [i for i, result in enumerate(before) if result is None]
    new = dict(zip(missing, trials.run([recipes[i] for i in missing]) if missing else []))
    sweep = Sweep()
    for i, (recipe, result) in enumerate(zip(recipes, before)):
        if result is not None:
            sweep.outcomes.append(Outcome(folders[i].path, result, found=True))
        elif "failure" in new[i]:
            sweep.failures[f"{recipe.name} (seed {recipe.seed})"] = new[i]["failure"]
        else:
            sweep.outcomes.append(Outcome(Path(new[i]["folder"]), new[i]["result"], found=new[i]["found"]))
    return sweep
