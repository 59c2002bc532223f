"""Collects everything that the page and the figures show, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import rankprune
from rankprune.lab.bench.latency import read as read_latency
from rankprune.lab.errors import RunError
from rankprune.lab.progress import Say, Steps, silent
from rankprune.lab.recipes.errors import RecipeError

from .colours import colour_of
from .layers import Layers, untrained
from .points import points
from .runs import NoRun, find, read_run, stamp

_MANY = 100  # pictures; if there are more, they are smaller, to limit the size of the page


class Collector:
    """Reads run folders repeatedly, and recomputes only what has changed.

    Args:
        paths: Run folders and folders of run folders.
        patience: See `Layers`.
        engine: Measure the latency of each layer on the engine.

    Raises:
        NoRun: A path holds no run.
    """

    def __init__(self, paths: Iterable[str | Path], patience: float = 0.0, engine: bool = False) -> None:
        self.paths, self.engine = list(paths), engine
        self.layers = Layers(256 if len(find(self.paths)) * 10 <= _MANY else 128, patience)
        self._seen: Any = None
        self._references: dict[str, dict[str, Any] | None] = {}

    def changed(self) -> bool:
        """Whether `collect` would return something new."""
        folders = find(self.paths)
        return self._seen != [stamp(f) for f in folders] or any(self.layers.due(f) for f in folders)

    def collect(self, say: Say = silent) -> dict[str, Any]:
        """Read all runs. A damaged one among several is named and skipped.

        Args:
            say: Called with sentences about the progress.

        Returns:
            Plain values for the page and the figures.

        Raises:
            NoRun: No run can be read.
            RunError: The result or environment of the only run is damaged.
            RecipeError: The recipe of the only run is damaged.
        """
        folders = find(self.paths)
        seen = [stamp(f) for f in folders]
        runs, readable = [], []
        steps = Steps(len(folders), say)
        for folder in folders:
            steps.next(f"reading {folder}")
            try:
                run = read_run(folder)
            except (RunError, RecipeError) as error:
                if len(folders) == 1:
                    raise
                say(f"skipped: {error}")
                continue
            readable.append(folder)
            run["layers"], run["problem"], run["engine"] = None, None, None
            latency = read_latency(folder)
            run["latency"] = None if latency is None else latency.to_dict()
            try:
                run["layers"] = self.layers.of(folder, run["delta"])
            except Exception as error:  # if the weights cannot be read, the report still shows the rest
                run["problem"] = str(error) or type(error).__name__
                say(f"{folder} is shown without its layers: {error}")
            if self.engine and run["result"] and run["layers"]:
                run["engine"] = self._engine(folder, say)
            runs.append(run)
        if not runs:
            raise NoRun(f"No run in {', '.join(map(str, self.paths))} can be read: see the messages above.")
        _distinct(runs)
        collected = {
            "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "version": rankprune.__version__,
            "runs": runs,
            "points": points(runs),
            "colours": {method: colour_of(method) for method in {run["method"] for run in runs}},
            "references": self._reference(runs, readable),
        }
        self._seen = seen  # only now, so that a failed attempt is repeated
        return collected

    def _engine(self, folder: Path, say: Say) -> dict[str, Any]:
        from .engine_time import engine_time  # may compile the kernels

        say(f"timing {folder} on the sparse engine")
        return engine_time(folder)

    def _reference(self, runs: Sequence[dict[str, Any]], folders: Sequence[Path]) -> dict[str, Any]:
        """For each task the dense network to compare layers with: a trained one of the runs, or an untrained one."""
        references: dict[str, Any] = {}
        for run, folder in zip(runs, folders):
            task = run["task"]
            trained = (r for r in runs if r["task"] == task and r["method"] == "dense" and r["result"] and r["layers"])
            dense = next(trained, None)
            if dense is not None:
                references[task] = {"label": f"dense, trained ({dense['name']})", "run": dense["id"], "layers": None}
                continue
            if self._references.get(task) is None and run["layers"]:
                layers = untrained(folder, run["delta"], 1)  # pictures of one pixel, because dense masks show nothing
                self._references[task] = {"label": "dense, untrained", "run": None, "layers": layers}
            references.setdefault(task, self._references.get(task))
        return references


def _distinct(runs: Sequence[dict[str, Any]]) -> None:
    """Number folders of the same name, because the page identifies runs by it."""
    seen: dict[str, int] = {}
    for run in runs:
        seen[run["id"]] = seen.get(run["id"], 0) + 1
        if seen[run["id"]] > 1:
            run["id"] += f" ({seen[run['id']]})"
