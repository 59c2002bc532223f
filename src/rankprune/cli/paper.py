"""`rankprune paper`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from rankprune.core.summary import table
from rankprune.lab.paper import index, launch
from rankprune.lab.paper.evidence import percent
from rankprune.lab.paper.records import Record, result_of
from rankprune.lab.paper.work import Paths, QueueWorker
from rankprune.lab.progress import duration
from rankprune.lab.sweep.sweep import make_runner

from .bars import Bars
from .output import check_folder, emit, note, say

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


def run(args: argparse.Namespace) -> int:
    """Print a table, list the tables, draw the figures or run the queue.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    paths = Paths(Path(args.results), Path(args.out), args.data)
    if args.what == "list":
        return _list(args, paths)
    if args.what == "run":
        return _run(args, paths)
    if args.what == "figures":
        return _figures(args, paths)
    page = index.build(args.what, paths.results, args.scale)
    return emit(args.json, page.to_dict(), str(page))


def _list(args: argparse.Namespace, paths: Paths) -> int:
    tables = [index.build(name, paths.results, args.scale) for name in index.TABLES]
    rows = [(t.name, f"{t.done} of {t.planned}", t.ran or "-", t.title.partition("; ours:")[0]) for t in tables]
    queue = paths.queue(paths.records()) if args.scale == "cpu" else index.full_queue()
    lines = table(("name", "runs done", "what ran", "table or figure"), rows)
    if args.scale == "cpu":
        lines += ["", "Nothing has been run at full scale (--scale full) unless a title says so."]
    missing = sorted({run.task for run in queue.runs() if not run.known()})
    lines += ["", f"{len(queue.items)} runs and measurements are in the queue; several tables may use the same run."]
    lines += [f"{sentence}." for sentence in queue.waiting]
    lines += [f"There is no recipe {task}-*: its rows are skipped." for task in missing]
    return emit(args.json, [t.to_dict() for t in tables], "\n".join(lines))


def _figures(args: argparse.Namespace, paths: Paths) -> int:
    from rankprune.lab.paper.figures import write  # needs matplotlib, which is optional

    files = [str(path) for path in write(paths.results)]
    return emit(args.json, files, "\n".join(files) or "No run has a record yet: there is nothing to draw.")


def _run(args: argparse.Namespace, paths: Paths) -> int:
    seconds = None if args.duration is None else seconds_of(args.duration)
    if args.scale == "full":
        (say if args.json else print)(launch.commands(paths))
        added = launch.launch(paths, seconds, note, lambda record: _finished(record, paths, "full"))
        return emit(args.json, {"added": added}, f"{added} records added.")
    paths.queue(paths.records())  # reports a mistake in the queue before anything else
    check_folder(args.out)
    if paths.embedded:
        note("CIFAR-10 is missing (--data DIR): the embedded subset of Fashion-MNIST is used instead.")
    worker = QueueWorker(paths, args.again, note, lambda record: _finished(record, paths, "cpu"))
    jobs = args.jobs if args.ray is None or args.jobs > 1 else None
    added = worker.run(make_runner(Bars(), jobs, args.ray), seconds)
    return emit(args.json, {"added": added}, f"{added} records added.")


def _finished(record: Record, paths: Paths, scale: Any) -> None:
    result = result_of(record)
    if result is None:
        text = record.get("failed") or "measured"
    else:
        text = f"{'runs' if record['smoke'] else f'{percent([result.accuracy_last])} %'} in {duration(result.seconds)}"
    note(f"{record['name']}, seed {record['seed']}: {text}")
    index.render(paths.results, scale)


def seconds_of(text: str) -> float:
    """Parse a duration.

    Args:
        text: Such as "150m", "2h", "1h30m" or "90s".

    Returns:
        Seconds.

    Raises:
        ValueError: The text is not a duration.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"--for {text} is not a duration: write 150m, 2h or 1h30m.")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
