"""`train`: runs a recipe in its run folder, from the start or from a checkpoint; a finished run is only read."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankprune._util import one_line
from rankprune.core.sparsifier import NotAtTarget
from rankprune.formats import save
from rankprune.lab.data import DataModule
from rankprune.lab.distributed.world import World, is_lost_peer, join, world_from_environment
from rankprune.lab.errors import LostRank, OffTarget, RunError, Unfinished
from rankprune.lab.recipes.schema import Recipe
from rankprune.lab.runs.environment import environment
from rankprune.lab.runs.result import RunResult
from rankprune.lab.runs.run_folder import ENVIRONMENT, MODEL, RunFolder, writing

from . import checkpoint
from .callbacks import Callback, CallbackList, TensorBoard
from .interrupt import Interrupt
from .loop import Loop, Progress
from .results import describe_run, describe_updates
from .smoke import smaller, stand_in
from .task import Task, build


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    Attributes:
        folder: The run folder.
        result: The run's result.
        finished_before: Whether the run had been finished before, so that nothing was trained.
        main: Whether this is the process that writes files and prints.
    """

    folder: Path
    result: RunResult
    finished_before: bool
    main: bool = True


def train(
    recipe: Recipe,
    out: str | Path = "runs",
    *,
    resume: bool = False,
    callback: Callback | None = None,
    data: DataModule | None = None,
) -> Outcome:
    """Train a recipe. A finished run is only read.

    Under torchrun every process calls this; only the main process writes files and calls the callback.

    Args:
        recipe: The recipe.
        out: Folder that holds the run folders.
        resume: Continue an unfinished run.
        callback: Receives the progress.
        data: Replaces the recipe's data.

    Returns:
        The run's folder and result.

    Raises:
        Unfinished: There is an unfinished run, and `resume` is False.
        Interrupted: A signal asked to stop; the run has been saved.
        RunError: The run failed.

    Example:
        >>> outcome = train(load_recipe("fashion-rpg-98"), out="runs")
        >>> outcome.result.accuracy_last
    """
    world = join(recipe.device)
    callback = CallbackList([callback or Callback(), TensorBoard()]) if world.main else Callback()
    folder = RunFolder.of(recipe, out)
    try:
        outcome = _train(recipe, folder, resume, callback, data, world)
        world.barrier()
        return outcome
    except RuntimeError as error:
        if world.size == 1 or isinstance(error, RunError) or not is_lost_peer(error):
            raise
        way_out = "start them all again with --resume"
        raise LostRank(f"Another process of {folder.path} stopped responding outside training: {way_out}.") from error


def _train(
    recipe: Recipe, folder: RunFolder, resume: bool, callback: Callback, data: DataModule | None, world: World
) -> Outcome:
    result, started = world.on_main(lambda: _state_of(folder, resume))
    if result is not None:
        return Outcome(folder.path, RunResult.from_dict(result), finished_before=True, main=world.main)
    task = build(recipe, data, world)  # before anything is written, so that a mistake leaves nothing behind
    with contextlib.ExitStack() as locks:
        world.on_main(lambda: _lock(folder, locks))
        progress = _restore(task, folder, callback) if started else Progress()
        world.on_main(lambda: _begin(recipe, folder, progress, world.size, started))
        loop = Loop(task, folder, callback, progress)
        callback.begin(recipe, folder.path, progress.step, task.total_steps)
        try:
            with Interrupt(under_torchrun=world.size > 1) as interrupt:
                loop.run(interrupt)
            return Outcome(folder.path, finish(task, folder, progress), finished_before=False, main=world.main)
        finally:
            callback.end()


def _state_of(folder: RunFolder, resume: bool) -> tuple[dict[str, Any] | None, bool]:
    """The result as plain values, if there is one, and whether the run was started."""
    result, started = folder.result(), checkpoint.exists(folder.path)
    if result is None and started and not resume:
        with folder.locked():  # if the run is still active, raise this instead of suggesting to remove the folder
            pass
        raise Unfinished(f"{folder.path} holds an unfinished run: add --resume to continue, or remove the folder.")
    return None if result is None else result.to_dict(), started


def _lock(folder: RunFolder, locks: contextlib.ExitStack) -> None:
    folder.create()
    locks.enter_context(folder.locked())
    folder.tidy()


def _begin(recipe: Recipe, folder: RunFolder, progress: Progress, processes: int, started: bool) -> None:
    folder.write_recipe(recipe)
    if not started:
        folder.write_json(ENVIRONMENT, environment(processes))
    folder.keep_metrics(progress.epoch)


def smoke(
    recipe: Recipe, out: str | Path = "runs", *, resume: bool = False, callback: Callback | None = None
) -> Outcome:
    """Train a recipe for a few steps, to check that it runs; without a data folder, on generated images.

    Args:
        recipe: The recipe.
        out: Folder that holds the run folders.
        resume: Continue an unfinished run.
        callback: Receives the progress.

    Returns:
        The run's folder and result.
    """
    world = world_from_environment()
    small = smaller(recipe, world.size)
    if recipe.model.pretrained and callback is not None and world.main:
        start = recipe.model.pretrained if isinstance(recipe.model.pretrained, str) else "pretrained ones"
        callback.message(f"A smoke run downloads nothing: it starts from random weights, not from {start}.")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*updates its masks")  # only few times, as is meant here
        return train(small, out, resume=resume, callback=callback, data=stand_in(small))


def _restore(task: Task, folder: RunFolder, callback: Callback) -> Progress:
    content = b""

    def read() -> list[str]:
        nonlocal content
        content, problem = checkpoint.newest(folder.path)
        before, now = folder.read_json(ENVIRONMENT) or {}, environment(task.world.size)
        changed = [key for key in ("torch", "cpu", "threads", "processes") if before.get(key, 1) != now[key]]
        return [problem] * bool(problem) + [
            f"The run was started with {key} {before.get(key)} and continues with {now[key]}: the last bits may differ."
            for key in changed
        ]

    for message in task.world.on_main(read):
        callback.message(message)
    state = checkpoint.parse(task.world.broadcast(content), folder.path)  # read by the main process, parsed by all
    try:
        task.load_state_dict(state)
        return Progress(**state["progress"]).checked()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        if isinstance(error, RunError) or (task.world.size > 1 and is_lost_peer(error)):
            raise
        reason = one_line(error)
        raise RunError(
            f"The checkpoint of {folder.path} is intact but not of this run ({type(error).__name__}: {reason}): "
            "remove the folder and start over."
        ) from error


def finish(task: Task, folder: RunFolder, progress: Progress) -> RunResult:
    """Check the sparsity, save the model and write the result.

    Args:
        task: The objects of the run.
        folder: The run's folder.
        progress: The counters of the loop.

    Returns:
        The result.

    Raises:
        OffTarget: The sparsity is not the target.
    """
    report = None
    if task.sparsifier is not None:
        try:
            report = task.sparsifier.finalize()
        except NotAtTarget as error:
            raise OffTarget(f"{folder.path}: {error}.", already_reported=not task.world.main) from None
    updates = describe_updates(task)
    model = task.whole_model().eval()

    def write() -> dict[str, Any]:
        with writing(folder.path / MODEL):
            save(model, folder.path / MODEL, about=task.about().to_dict())
        result = describe_run(task, model, report, progress, folder.path / MODEL, updates)
        folder.write_result(result)
        return result.to_dict()

    return RunResult.from_dict(task.world.on_main(write))
