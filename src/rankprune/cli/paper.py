"""`rankprune paper`."""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import Any

from rankprune.core.summary import table
from rankprune.lab.paper import index, launch
from rankprune.lab.paper.evidence import percent
from rankprune.lab.paper.queue import accuracy
from rankprune.lab.paper.records import Record
from rankprune.lab.paper.work import Places, Share, Worker, in_parallel

from .bars import Bars
from .output import emit, say

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


def run(args: argparse.Namespace) -> int:
    places = Places(Path(args.results), Path(args.out), args.data)
    if args.what == "list":
        return _list(args, places)
    if args.what == "run":
        return _run(args, places)
    if args.what == "figures":
        return _figures(args, places)
    found = index.build(args.what, places.results, args.scale)
    return emit(args.json, found.to_dict(), str(found))


def _list(args: argparse.Namespace, places: Places) -> int:
    tables = [index.build(name, places.results, args.scale) for name in index.TABLES]
    rows = [(t.name, f"{t.done} of {t.planned}", t.title) for t in tables]
    queue = places.queue(places.records()) if args.scale == "cpu" else index.full_queue()
    lines = table(("name", "runs done", "table or figure"), rows)
    missing = sorted({run.task for run in queue.runs() if not run.known()})
    lines += ["", f"{len(queue.items)} runs and measurements in the queue, each of which may serve several tables."]
    lines += [f"{sentence}." for sentence in queue.waiting]
    lines += [f"There is no recipe {task}-*: its rows are skipped." for task in missing]
    return emit(args.json, [t.to_dict() for t in tables], "\n".join(lines))


def _figures(args: argparse.Namespace, places: Places) -> int:
    from rankprune.lab.paper.figures import write  # matplotlib belongs to an extra

    files = [str(path) for path in write(places.results)]
    return emit(args.json, files, "\n".join(files) or "No run has a record yet: there is nothing to draw.")


def _run(args: argparse.Namespace, places: Places) -> int:
    seconds = None if args.duration is None else duration(args.duration)
    if args.scale == "full":
        print(launch.commands(places), flush=True)
        added = launch.launch(places, seconds, say, lambda record: _finished(record, places, "full"))
        return emit(args.json, {"added": added}, f"{added} records added.")
    if places.embedded and not args.worker:
        say("rankprune: CIFAR-10 is not there (--data DIR): the embedded slice of Fashion-MNIST takes its place.")
    ends = None if seconds is None else time.monotonic() + seconds

    def work(share: Share) -> None:
        left = None if ends is None else ends - time.monotonic()
        Worker(
            places, left, args.again, share, Bars(), lambda text: say(f"rankprune: {text}"),
            lambda record: _finished(record, places, "cpu"),
        ).run()  # fmt: skip

    if args.worker:
        work("runs")
        return 0
    before = len(list(places.records()))
    if args.jobs > 1:
        work("measurements")  # while nothing else runs
        code = in_parallel(_again(args, ends), args.jobs)
        if code:
            return code
    work("all")
    added = len(list(places.records())) - before
    return emit(args.json, {"added": added}, f"{added} records added.")


def _again(args: argparse.Namespace, ends: float | None) -> list[str]:
    """The command of one of several workers."""
    words = ["paper", "run", "--worker", "--results", args.results, "--out", args.out]
    words += ["--data", args.data] if args.data else []
    words += [] if ends is None else ["--for", f"{max(ends - time.monotonic(), 0):.0f}s"]
    return words + ["--again"] * args.again


def _finished(record: Record, places: Places, scale: Any) -> None:
    value = accuracy(record)
    result = record.get("result") or {}
    found = "measured" if value is None else "runs" if record["smoke"] else f"{percent([value])} %"
    text = record.get("failed") or found
    seconds = f" in {result['seconds']:.0f} s" if "seconds" in result else ""
    say(f"rankprune: {record['name']}, seed {record['seed']}: {text}{seconds}")
    index.render(places.results, scale)


def duration(text: str) -> float:
    """Seconds of 150m, 2h, 1h30m or 90s."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"--for {text} is no time: write 150m, 2h or 1h30m.")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
