"""Everything the page and the figures show, as one value that JSON can hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import rankprune
from rankprune.lab.bench.latency import read as read_latency
from rankprune.lab.errors import RunError
from rankprune.lab.progress import Say, Steps, silent

from .colours import colour_of
from .layers import Layers, untrained
from .points import points
from .runs import NoRun, find, read_run, stamp

_MANY = 100  # pictures; beyond that they are smaller, so that the page stays so


class Collector:
    """Reads run folders again and again, and works out only what has changed."""

    def __init__(self, paths: Iterable[str | Path], patience: float = 0.0, engine: bool = False) -> None:
        self.paths, self.engine = list(paths), engine
        self.layers = Layers(256 if len(find(self.paths)) * 10 <= _MANY else 128, patience)
        self._seen: Any = None
        self._references: dict[str, dict[str, Any] | None] = {}

    def changed(self) -> bool:
        """Whether `collect` would find something new."""
        folders = find(self.paths)
        return self._seen != [stamp(f) for f in folders] or any(self.layers.due(f) for f in folders)

    def collect(self, say: Say = silent) -> dict[str, Any]:
        folders = find(self.paths)
        seen = [stamp(f) for f in folders]
        runs, readable = [], []
        steps = Steps(len(folders), say)
        for folder in folders:
            steps.next(f"reading {folder}")
            try:
                run = read_run(folder)
            except RunError as error:
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
            except Exception as error:  # weights that cannot be read, whyever, leave the rest of the report standing
                run["problem"] = str(error) or type(error).__name__
                say(f"{folder} is shown without its layers: {error}")
            if self.engine and run["result"] and run["layers"]:
                run["engine"] = self._engine(folder, say)
            runs.append(run)
        if not runs:
            raise NoRun(f"No run of {', '.join(map(str, self.paths))} can be read: the lines above say why.")
        _distinct(runs)
        found = {
            "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "version": rankprune.__version__,
            "runs": runs,
            "points": points(runs),
            "colours": {method: colour_of(method) for method in {run["method"] for run in runs}},
            "references": self._reference(runs, readable),
        }
        self._seen = seen  # only now: what failed is tried again
        return found

    def _engine(self, folder: Path, say: Say) -> dict[str, Any]:
        from .engine_time import engine_time  # builds kernels where they are not built yet

        say(f"timing {folder} on the sparse engine")
        return engine_time(folder)

    def _reference(self, runs: Sequence[dict[str, Any]], folders: Sequence[Path]) -> dict[str, Any]:
        """For each task the dense network to compare layers with: a trained one among the runs, or else a new one."""
        found: dict[str, Any] = {}
        for run, folder in zip(runs, folders):
            task = run["task"]
            trained = (r for r in runs if r["task"] == task and r["method"] == "dense" and r["result"] and r["layers"])
            dense = next(trained, None)
            if dense is not None:
                found[task] = {"label": f"dense, trained ({dense['name']})", "run": dense["id"], "layers": None}
                continue
            if self._references.get(task) is None and run["layers"]:
                layers = untrained(folder, run["delta"], 1)  # its pictures would be all dark: the least there can be
                self._references[task] = {"label": "dense, untrained", "run": None, "layers": layers}
            found.setdefault(task, self._references.get(task))
        return found


def _distinct(runs: Sequence[dict[str, Any]]) -> None:
    """Folders of one name in different places get a number, because the page tells runs apart by it."""
    seen: dict[str, int] = {}
    for run in runs:
        seen[run["id"]] = seen.get(run["id"], 0) + 1
        if seen[run["id"]] > 1:
            run["id"] += f" ({seen[run['id']]})"
