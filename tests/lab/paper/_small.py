"""A queue of seconds on the embedded data, and records as a run would leave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _runs import a_result
from rankprune.core.budget import kept
from rankprune.lab.paper.records import Records
from rankprune.lab.paper.runs import Run

QUEUE = """\
budget:
  fashion: [epochs=1, data.limit_train=96, data.limit_test=50, data.batch_size=16]
stages:
  - name: first
    task: fashion
    methods: [dense, magnitude, random]
    sparsities: [90, 95]
"""


def write_queue(folder: Path, text: str = QUEUE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "queue.yaml").write_text(text)
    return folder


def add(records: Records, run: Run, accuracy: float | None, code: str = "0.1.0-a", embedded: bool = False, **other: Any) -> None:
    """A record of this run with this accuracy; None: it failed."""
    total, target = 10_000, (run.percent or 0) / 100
    result = None
    if accuracy is not None:
        found = a_result(run.name, accuracy, target, kept(total, target), total, method=run.method, seed=run.seed)
        result = {**found, "macs_sparse": 20, "macs_dense": 100, "training_share": 0.25, **other}
    recipe = run.recipe(embedded).model_dump(mode="json")
    record = {"run": run.key(embedded), "name": run.name, "seed": run.seed, "code": code, "result": result, "recipe": recipe}
    records.add(record if accuracy is not None else {**record, "failed": "The loss is nan."})
