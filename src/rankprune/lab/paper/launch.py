"""Runs the full-scale recipes on the GPUs of this machine, each with torchrun."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from rankprune.lab.errors import RunError
from rankprune.lab.progress import Say, Steps
from rankprune.lab.runs.run_folder import RunFolder

from .index import full_queue
from .records import Record, code_version
from .runs import Run
from .work import Paths, describe


def command(run: Run, paths: Paths, gpus: int) -> list[str]:
    """Return the command that trains one run; because of `--resume`, repeating it continues the run.

    Args:
        run: The run.
        paths: Folders of data and runs.
        gpus: Number of GPUs.

    Returns:
        The words of the command.
    """
    words = ["torchrun", "--standalone", f"--nproc-per-node={gpus}", "-m", "rankprune", "train", run.name]
    words += [*(f"{key}={json.dumps(value)}" for key, value in run.settings), f"seed={run.seed}"]
    return [*words, "--data", paths.data or "DIR", "--out", str(paths.out), "--resume"]


def commands(paths: Paths) -> str:
    """Return the commands of all full-scale runs, one per line, for 8 GPUs.

    Args:
        paths: Folders of data and runs.

    Returns:
        Shell commands.
    """
    return "\n".join(shlex.join(command(run, paths, 8)) for run in full_queue().runs() if run.known())


def launch(paths: Paths, seconds: float | None, say: Say, finished: Callable[[Record], None]) -> int:
    """Train the runs that have no record yet.

    Args:
        paths: Folders of data, runs and records.
        seconds: Stop after this time; None for no limit.
        say: Called with sentences about the progress.
        finished: Called with each new record.

    Returns:
        The number of records added.

    Raises:
        RunError: There is no GPU or no data folder.
    """
    gpus = torch.cuda.device_count()
    if not gpus:
        raise RunError(
            "--scale full needs a GPU and this machine has none: "
            "run the commands printed above on a machine that has, or use --scale cpu."
        )
    if paths.data is None:
        raise RunError("--scale full reads its data from a folder: give it with --data DIR.")
    until, added = None if seconds is None else time.monotonic() + seconds, 0
    records = paths.records()
    due = [run for run in full_queue().runs() if run.known() and not records.has(run.key())]
    steps = Steps(len(due), say)
    for run in due:
        records = paths.records()
        if until is not None and time.monotonic() >= until:
            break
        steps.next(f"{run} on {gpus} GPUs")
        left = None if until is None else until - time.monotonic()
        if not _train(run, paths, gpus, left, say):
            continue
        recipe = run.placed(paths.out, paths.data, embedded=False)
        result = RunFolder.of(recipe, paths.out).result()
        if result is not None:
            record = describe(run.key(), recipe.name, run.seed, code_version(), result.to_dict(), recipe) | {
                "smoke": False
            }
            records.add(record)
            finished(record)
            added += 1
    return added


def _train(run: Run, paths: Paths, gpus: int, seconds: float | None, say: Say) -> bool:
    # `python -m torch.distributed.run` is torchrun without a search of the PATH.
    words = [sys.executable, "-m", "torch.distributed.run", *command(run, paths, gpus)[1:]]
    process = subprocess.Popen(words)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # the run saves a checkpoint and continues next time
        process.wait()
        return False
    if code:
        say(f"{run} is skipped: its command exited with code {code}")
    return code == 0
