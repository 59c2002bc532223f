"""The queue: stages in order of importance, expanded from a YAML file to runs and measurements."""

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
    """The best methods of another stage, by their mean accuracy at some sparsities."""

    of: str
    count: int = Field(ge=1)
    by: tuple[float, ...]


class Stage(Section):
    """All combinations of methods, sparsities, settings and seeds, ordered by seed and sparsity."""

    name: str
    task: str | None = None
    methods: tuple[str, ...] = ()
    leading: Leading | None = None  # instead of `methods`
    sparsities: tuple[float, ...] = ()
    vary: tuple[dict[str, list[Any]], ...] = ({},)  # grids: each maps a dotted key to its values
    seeds: tuple[int, ...] = (0,)
    pretrained: bool = False  # start from the task's dense run
    distilled: bool = False  # learn from it as well
    smoke: bool = False
    measure: str | None = None  # name of a measurement, instead of runs

    @model_validator(mode="after")
    def what_it_needs(self) -> Stage:
        """Check the name of a measurement, and that pruning methods have sparsities."""
        if self.measure is not None and self.measure not in MEASUREMENTS:
            raise ValueError(f"stage {self.name}: measure={self.measure} is none of {', '.join(MEASUREMENTS)}")
        pruned = self.leading is not None or any(method != "dense" for method in self.methods)
        if pruned and not self.sparsities:  # without them the stage would be a dense run
            raise ValueError(f"stage {self.name}: sparsities is missing, and its methods need it")
        return self


class QueueFile(Section):
    """The content of queue.yaml."""

    budget: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # overrides for all runs of a task
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Measurement:
    """A measurement that needs an otherwise idle machine."""

    name: str


Item = Run | Measurement


@dataclass
class Queue:
    """The items of a queue.

    Attributes:
        items: (stage, item) in order; an item that several stages contain is listed once.
        stages: All items of each stage, including those of earlier stages.
        waiting: One sentence per stage that depends on results that do not exist yet.
    """

    items: list[tuple[str, Item]] = field(default_factory=list)
    stages: dict[str, list[Item]] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)

    def runs(self, stage: str | None = None) -> list[Run]:
        """Return the runs.

        Args:
            stage: Only those of this stage; None for all.

        Returns:
            The runs, in order.
        """
        items = [item for _, item in self.items] if stage is None else self.stages.get(stage, [])
        return [item for item in items if isinstance(item, Run)]

    def measurements(self) -> list[Measurement]:
        """Return the measurements."""
        return [item for _, item in self.items if isinstance(item, Measurement)]


def read_queue(path: Path, records: Records) -> Queue:
    """Read a queue and expand it. Stages that depend on results which do not exist yet are left for later.

    Args:
        path: The file queue.yaml.
        records: The records so far.

    Returns:
        The queue.

    Raises:
        RecipeError: The file is missing or invalid.
    """
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
            raise RecipeError(
                f"{path}: {stage.name} takes the leading methods of {stage.leading.of!r}, which is no earlier stage."
            )
        # The dense run occurs once per sparsity; `fromkeys` keeps one.
        items = list(dict.fromkeys(_items(stage, file.budget, queue, records)))
        queue.stages[stage.name] = items
        queue.items += [(stage.name, item) for item in items if item not in seen]
        seen.update(items)
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
        start, taught = stage.pretrained and not dense, stage.distilled and not dense
        yield Run(task, method, percent, settings, seed, tuple(budget.get(task, ())), start, stage.smoke, taught)


def leading(runs: list[Run], records: Records, want: Leading) -> list[tuple[str, tuple[tuple[str, Any], ...]]] | None:
    """Return the best methods of a stage.

    Args:
        runs: The runs of the stage.
        records: The records so far.
        want: How many methods, and the sparsities to rank them by.

    Returns:
        (method, settings) of each, best first; None until all runs at those sparsities have a record.
    """
    accuracies: dict[tuple[str, tuple[tuple[str, Any], ...]], list[float]] = {}
    embedded = on_embedded(runs, records)
    for run in runs:
        if run.percent not in want.by or not run.known():
            continue
        record = record_of(run, records, embedded)
        if record is None:
            return None
        accuracies.setdefault((run.method, run.settings), []).append(accuracy(record) or 0.0)
    ranked = sorted(accuracies, key=lambda choice: -statistics.fmean(accuracies[choice]))
    return ranked[: want.count] if ranked else None


def on_embedded(runs: Iterable[Run], records: Records) -> bool:
    """Whether all records of these runs are on the embedded images; the two data sets are never mixed.

    Args:
        runs: The runs.
        records: The records.

    Returns:
        True if there are records, and none on CIFAR-10.
    """
    known = [run for run in runs if run.known()]
    return not any(records.has(run.key()) for run in known) and any(records.has(run.key(True)) for run in known)


def record_of(run: Run, records: Records, embedded: bool) -> Record | None:
    """Return the newest record of a run.

    Args:
        run: The run.
        records: The records.
        embedded: Look for a run on the embedded images.

    Returns:
        The record, or None.
    """
    return records.newest(run.key(embedded)) if run.known() else None


def accuracy(record: Record) -> float | None:
    """Return the accuracy of the last epoch.

    Args:
        record: A record.

    Returns:
        The accuracy as a fraction; None for a run that failed or a measurement.
    """
    result = result_of(record)
    return None if result is None else result.accuracy_last
