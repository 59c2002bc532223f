"""`train`: a recipe into its run folder, from the start, from where it stopped, or from the result that is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankprune.data import DataModule
from rankprune.formats import save
from rankprune.recipes.schema import Recipe
from rankprune.sparsifier import NotAtTarget

from . import checkpoint
from .environment import environment
from .errors import OffTarget, Unfinished
from .folder import ENVIRONMENT, MODEL, RESULT, RunFolder, writing
from .interrupt import Interrupt
from .loop import Loop, Progress
from .record import describe
from .smoke import smaller, stand_in
from .task import Task, build
from .watch import Several, TensorBoard, Watcher


@dataclass(frozen=True)
class Outcome:
    folder: Path
    result: dict[str, Any]
    found: bool  # the run had been finished before


def train(
    recipe: Recipe,
    out: str | Path = "runs",
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    data: DataModule | None = None,
) -> Outcome:
    """Run a recipe; a finished run is only read, an unfinished one goes on with `resume` alone."""
    watcher = Several([watcher or Watcher(), TensorBoard()])
    folder = RunFolder.of(recipe, out)
    if (result := folder.result()) is not None:
        return Outcome(folder.path, result, found=True)
    started = checkpoint.exists(folder.path)
    if started and not resume:
        raise Unfinished(f"{folder.path} holds an unfinished run: add --resume to go on, or remove the folder.")
    task = build(recipe, data)  # before anything is written, so that a mistake leaves nothing behind
    folder.create()
    with folder.locked():
        progress = _restore(task, folder, watcher) if started else Progress()
        folder.write_recipe(recipe)
        if not started:
            folder.write_json(ENVIRONMENT, environment())
        folder.keep_metrics(progress.epoch)
        loop = Loop(task, folder, watcher, progress)
        watcher.begin(recipe, folder.path, progress.step, task.total_steps)
        try:
            with Interrupt() as interrupt:
                loop.run(interrupt)
            return Outcome(folder.path, finish(task, folder, progress), found=False)
        finally:
            watcher.end()


def smoke(recipe: Recipe, out: str | Path = "runs", *, resume: bool = False, watcher: Watcher | None = None) -> Outcome:
    """The same in miniature, in seconds, to see that it runs; without a data folder on random images."""
    small = smaller(recipe)
    return train(small, out, resume=resume, watcher=watcher, data=stand_in(small))


def _restore(task: Task, folder: RunFolder, watcher: Watcher) -> Progress:
    state, problem = checkpoint.load(folder.path)
    if problem:
        watcher.message(problem)
    before, now = folder.read_json(ENVIRONMENT) or {}, environment()
    for key in ("torch", "cpu", "threads"):
        if before.get(key) != now[key]:
            begun = f"The run was begun with {key} {before.get(key)}"
            watcher.message(f"{begun} and goes on with {now[key]}: last bits differ.")
    task.load_state_dict(state)
    return Progress(**state["progress"])


def finish(task: Task, folder: RunFolder, progress: Progress) -> dict[str, Any]:
    """Check the sparsity, save the model, write the result."""
    report = None
    if task.sparsifier is not None:
        try:
            report = task.sparsifier.finalize()
        except NotAtTarget as error:
            raise OffTarget(f"{folder.path}: {error}.") from None
    model = task.evaluated().eval()
    with writing(folder.path / MODEL):
        save(model, folder.path / MODEL)
    result = describe(task, model, report, progress, folder.path / MODEL)
    folder.write_json(RESULT, result)
    return result
