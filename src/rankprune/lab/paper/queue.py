"""The queue: stages in order of value, from a YAML file to runs and measurements."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankprune.lab.recipes import RecipeError
from rankprune.lab.recipes.explain import explain
from rankprune.lab.recipes.schema import Section
from rankprune.lab.recipes.yaml_file import read

from .measure import MEASUREMENTS
from .records import Record, Records, result_of
from .runs import Run

from pydantic import Field, ValidationError, model_validator  # isort: skip  (schema.py says how to install it)


class Leading(Section):
    """The methods that come first in another stage, by their mean accuracy over some sparsities."""

    of: str
    count: int = Field(ge=1)
    by: tuple[float, ...]


class Stage(Section):
    """Every method at every sparsity with every setting and seed; sparsity by sparsity, so that a part compares."""

    name: str
    task: str | None = None
    methods: tuple[str, ...] = ()
    leading: Leading | None = None  # in place of methods
    sparsities: tuple[float, ...] = ()
    vary: tuple[dict[str, list[Any]], ...] = ({},)  # grids of dotted key: values, one after another
    seeds: tuple[int, ...] = (0,)
    pretrained: bool = False
    smoke: bool = False
    measure: str | None = None  # not a run: the name of a measurement

    @model_validator(mode="after")
    def what_it_needs(self) -> Stage:
        if self.measure is not None and self.measure not in MEASUREMENTS:
            raise ValueError(f"stage {self.name}: measure={self.measure} is none of {', '.join(MEASUREMENTS)}")
        pruned = self.leading is not None or any(method != "dense" for method in self.methods)
        if pruned and not self.sparsities:  # without one a run would be the dense one
            raise ValueError(f"stage {self.name}: sparsities is missing, and its methods need them")
        return self


class QueueFile(Section):
    budget: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # task: key=value for all of its runs
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Measurement:
    """Something timed on this machine, alone."""

    name: str


Item = Run | Measurement


@dataclass
class Queue:
    items: list[tuple[str, Item]] = field(default_factory=list)  # stage and what to do, each thing once
    stages: dict[str, list[Item]] = field(default_factory=dict)  # all that each asks for, also what another did before
    waiting: list[str] = field(default_factory=list)  # stages that wait for others, in a sentence each

    def runs(self, stage: str | None = None) -> list[Run]:
        found = [item for _, item in self.items] if stage is None else self.stages.get(stage, [])
        return [item for item in found if isinstance(item, Run)]

    def measurements(self) -> list[Measurement]:
        return [item for _, item in self.items if isinstance(item, Measurement)]


def read_queue(path: Path, records: Records) -> Queue:
    """All that is to be done, in order; what depends on results that are not there yet is left for later."""
    if not path.is_file():
        raise RecipeError(f"There is no queue {path}: give the folder that holds queue.yaml with --results DIR.")
    try:
        file = QueueFile.model_validate(read(path))
    except ValidationError as error:
        raise RecipeError(f"{path}: {explain(error, QueueFile)}") from None
    queue = Queue()
    seen: set[Item] = set()
    for stage in file.stages:
        if stage.leading is not None and stage.leading.of not in queue.stages:
            raise RecipeError(f"{path}: {stage.name} takes the leaders of {stage.leading.of!r}, no stage before it.")
        asked = list(dict.fromkeys(_items(stage, file.budget, queue, records)))  # the dense run is of no sparsity
        queue.stages[stage.name] = asked
        queue.items += [(stage.name, item) for item in asked if item not in seen]
        seen.update(asked)
    return queue


def _items(stage: Stage, budget: Mapping[str, tuple[str, ...]], queue: Queue, records: Records) -> Iterator[Item]:
    if stage.measure is not None:
        yield Measurement(stage.measure)
        return
    choices: list[tuple[str, tuple[tuple[str, Any], ...]]] = [
        (method, tuple(zip(grid, values)))
        for grid in stage.vary
        for values in itertools.product(*grid.values())
        for method in stage.methods
    ]
    if stage.leading is not None:
        source = queue.runs(stage.leading.of)
        leaders = leading(source, records, stage.leading)
        if leaders is None:
            queue.waiting.append(f"{stage.name} waits until {stage.leading.of} is done")
            return
        choices = leaders
    task = stage.task or ""
    for seed, percent, (method, settings) in itertools.product(stage.seeds, stage.sparsities or (None,), choices):
        dense = method == "dense"
        if dense:
            percent, settings = None, tuple((key, value) for key, value in settings if not key.startswith("method."))
        start = stage.pretrained and not dense
        yield Run(task, method, percent, settings, seed, tuple(budget.get(task, ())), start, stage.smoke)


def leading(runs: list[Run], records: Records, want: Leading) -> list[tuple[str, tuple[tuple[str, Any], ...]]] | None:
    """Method and settings of the best; None until all of the stage's runs at those sparsities are there."""
    found: dict[tuple[str, tuple[tuple[str, Any], ...]], list[float]] = {}
    embedded = on_embedded(runs, records)
    for run in runs:
        if run.percent not in want.by or not run.known():
            continue
        record = record_of(run, records, embedded)
        if record is None:
            return None
        found.setdefault((run.method, run.settings), []).append(accuracy(record) or 0.0)
    ranked = sorted(found, key=lambda choice: -statistics.fmean(found[choice]))
    return ranked[: want.count] if ranked else None


def on_embedded(runs: Iterable[Run], records: Records) -> bool:
    """Whether there are records of these runs on embedded data alone; the two are never mixed."""
    known = [run for run in runs if run.known()]
    return not any(records.has(run.key()) for run in known) and any(records.has(run.key(True)) for run in known)


def record_of(run: Run, records: Records, embedded: bool) -> Record | None:
    """The newest record of a run."""
    return records.newest(run.key(embedded)) if run.known() else None


def accuracy(record: Record) -> float | None:
    """Of the last epoch; None of a run that failed or measures something else."""
    result = result_of(record)
    return None if result is None else result.accuracy_last
