"""Processes the queue with a runner until it is empty or the time is up."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankprune.lab.data.cifar10 import LAYOUTS
from rankprune.lab.errors import NanLoss, OffTarget, RunError
from rankprune.lab.progress import Say, duration
from rankprune.lab.recipes.load import to_dict
from rankprune.lab.recipes.schema import Recipe
from rankprune.lab.runs.environment import environment
from rankprune.lab.runs.run_folder import BEST, ENVIRONMENT, MODEL, RunFolder, writing
from rankprune.lab.sweep.runner import Order, Reply, Runner
from rankprune.lab.training.checkpoint import LAST, PREVIOUS

from .measure import MEASUREMENTS, measurement_key
from .queue import Item, Measurement, Queue, read_queue
from .records import Record, Records, code_version
from .runs import Run

_CODE = "code.txt"  # in a run's folder: the version of the code that started it


@dataclass(frozen=True)
class Paths:
    """The folders of `rankprune paper`.

    Attributes:
        results: Holds queue.yaml, records, tables and figures.
        out: Holds the run folders.
        data: Holds CIFAR-10; None or a folder without it means the embedded images.
    """

    results: Path
    out: Path
    data: str | None = None

    @property
    def embedded(self) -> bool:
        """Whether the embedded images replace CIFAR-10."""
        return not has_cifar10(self.data)

    def records(self) -> Records:
        """Read all records."""
        return Records(self.results / "records")

    def queue(self, records: Records) -> Queue:
        """Read the queue.

        Args:
            records: The records so far, on which some entries depend.

        Returns:
            The queue.
        """
        return read_queue(self.results / "queue.yaml", records)


@dataclass(frozen=True)
class _Claim:
    """A run that this process has claimed.

    Attributes:
        run: What is claimed.
        is_dense: Whether it is the dense run, which `run` needs, that is trained.
        code: The version of the code that started the run.
        lock: Releases the claim when closed.
    """

    run: Run
    is_dense: bool
    code: str
    lock: contextlib.ExitStack


@dataclass
class QueueWorker:
    """Gives the pending runs of the queue to a runner, and writes a record of each run that ends.

    Several commands may work on the same queue: each run is claimed by a lock while it trains.

    Attributes:
        paths: The folders.
        again: Also repeat runs whose records are all from other versions of the code.
        say: Called with sentences about the progress.
        finished: Called with each new record.
    """

    paths: Paths
    again: bool = False
    say: Say = print
    finished: Callable[[Record], None] = lambda record: None
    added: int = 0  # records
    _skipped: set[Item] = field(default_factory=set)
    _claims: dict[Path, _Claim] = field(default_factory=dict)  # by run folder
    _started: float = 0.0
    _ended: int = 0  # runs and measurements

    def run(self, runner: Runner, seconds: float | None = None) -> int:
        """Run until nothing is left that this process can do, or until the time is up.

        Args:
            runner: Trains the runs.
            seconds: Stop after this time; None for no limit.

        Returns:
            The number of records added.

        Raises:
            Interrupted: A signal asked to stop; the active runs have been saved.
            RunError: A file could not be written.
        """
        self._started = time.monotonic()
        try:
            runner.run(self._next, self._done, seconds)
        finally:
            for claim in self._claims.values():
                claim.lock.close()
            self._claims.clear()
        return self.added

    def _next(self, idle: bool) -> Order | None:
        while True:
            records = self.paths.records()
            due = [item for _, item in self.paths.queue(records).items if self._is_due(item, records, idle)]
            if not due:
                return None
            if isinstance(due[0], Measurement):
                self._measure(due[0], len(due))
            elif (order := self._claim(due[0], len(due))) is not None:
                return order

    def _announce(self, text: str, due: int) -> None:
        """Say what starts, its number, and the remaining time by the mean of what has ended."""
        active = len(self._claims)
        rest = due + max(active - 1, 0)  # `due` includes the one that starts
        number = self._ended + max(active, 1)
        each = (time.monotonic() - self._started) / max(self._ended, 1)
        left = f" (about {duration(each * rest)} left)" if self._ended else ""
        self.say(f"{number} of {self._ended + rest}: {text}{left}")

    def _is_due(self, item: Item, records: Records, idle: bool) -> bool:
        if item in self._skipped or (isinstance(item, Run) and not item.known()) or self._has(item, records):
            return False
        if isinstance(item, Measurement):
            return idle  # timings need an otherwise idle machine
        folder = self._order(item).folder
        return folder not in self._claims and (not item.needs_dense or self._dense(item).folder not in self._claims)

    def _has(self, item: Item, records: Records) -> bool:
        return records.has(self._key(item), code_version() if self.again else None)

    def _key(self, item: Item) -> str:
        return measurement_key(item.name) if isinstance(item, Measurement) else item.key(self.paths.embedded)

    def _measure(self, item: Measurement, due: int) -> None:
        with claimed(self.paths.out, self._key(item)) as mine:
            records = self.paths.records()
            if not mine or self._has(item, records):
                self._skipped.add(item)
                return
            self._announce(f"measuring {item.name}", due)
            result = MEASUREMENTS[item.name](self.paths.data, self.paths.embedded)
            self._ended += 1
            self._add(describe(self._key(item), item.name, 0, code_version(), result), records)

    @property
    def _out(self) -> Path:
        """Where run folders go. With `again` it is a folder of its own, so that no run of older code is resumed."""
        return self.paths.out / code_version() if self.again else self.paths.out

    def _order(self, run: Run) -> Order:
        return Order(run.placed(self._out, self.paths.data, self.paths.embedded), self._out, run.smoke)

    def _dense(self, run: Run) -> Order:
        """The dense run that a run starts from or learns from."""
        return Order(run.dense().placed(self._out, self.paths.data, self.paths.embedded), self._out)

    def _claim(self, run: Run, due: int) -> Order | None:
        """Claim a run, or the dense run that must come first; None if another process has claimed or finished it."""
        order, lock, is_dense = self._order(run), contextlib.ExitStack(), False
        if not lock.enter_context(claimed(self.paths.out, self._key(run))):
            self._skipped.add(run)
            lock.close()
            return None
        if self._has(run, self.paths.records()):  # another process finished it after the queue was read
            lock.close()
            return None
        if run.needs_dense and not ((dense := self._dense(run)).folder / MODEL).is_file():
            self.say(f"{dense.recipe.name} comes first, because {run.name} needs its weights")
            order, is_dense = dense, True
        self._claims[order.folder] = _Claim(run, is_dense, begun_by(RunFolder(order.folder)), lock)
        if not is_dense:
            self._announce(str(run), due)
        return order

    def _done(self, order: Order, reply: Reply) -> None:
        claim = self._claims.pop(order.folder)
        run, folder = claim.run, RunFolder(order.folder)
        with claim.lock:
            if reply.disk:  # on a full disk the next run would fail as well
                raise RunError(reply.failure)
            if reply.result is not None and claim.is_dense:
                return  # the run itself is next
            self._ended += 1
            if reply.result is not None:
                forget_checkpoints(folder)
                record = _record(self._key(run), order, claim.code, reply.result.to_dict())
                kind = {"smoke": run.smoke, "pretrained": run.pretrained, "distilled": run.distilled}
                self._add({**record, **kind, "epochs": folder.metrics()})
            elif reply.code in (NanLoss.exit_code, OffTarget.exit_code) and not claim.is_dense:
                why = reply.failure.replace(f"{folder.path}: ", "").replace(str(folder.path), folder.path.name)
                self._add({**_record(self._key(run), order, claim.code, None), "failed": why})
            else:
                self.say(f"{run} is skipped: {reply.failure}")
                self._skipped.add(run)

    def _add(self, record: Record, records: Records | None = None) -> None:
        (records or self.paths.records()).add(record)
        self.added += 1
        self.finished(record)


def _record(key: str, order: Order, code: str, result: dict[str, Any] | None) -> Record:
    ran_on = RunFolder(order.folder).read_json(ENVIRONMENT)
    return describe(key, order.recipe.name, order.recipe.seed, code, result, order.recipe, ran_on)


def describe(
    run: str,
    name: str,
    seed: int,
    code: str,
    result: dict[str, Any] | None,
    recipe: Recipe | None = None,
    ran_on: dict[str, Any] | None = None,
) -> Record:
    """Create the record of a run: all that is needed to repeat it, and no path of the machine it ran on.

    Args:
        run: Key of the run or measurement.
        name: Name of the recipe or measurement.
        seed: The run's seed.
        code: Version of the code that started the run.
        result: Its result; None for a run that failed.
        recipe: The resolved recipe; None for a measurement.
        ran_on: Content of the run's environment.json; by default, the environment of this process.

    Returns:
        The record, without `key` and `finished`.
    """
    here = {key: value for key, value in (ran_on or environment()).items() if key != "platform"}
    record: Record = {"run": run, "name": name, "seed": seed, "code": code, "result": result, "environment": here}
    if code != code_version():
        record["finished_by"] = code_version()
    if recipe is not None:
        resolved = to_dict(recipe)
        resolved["data"].pop("root", None)
        for section in ("model", "distill"):
            (resolved.get(section) or {}).pop("weights", None)
        record["recipe"] = resolved
        if recipe.data.name == "fashion":
            record["data"] = "the embedded subset of Fashion-MNIST, because CIFAR-10 was missing"
    return record


def begun_by(folder: RunFolder) -> str:
    """Return the version of the code that started a run; a new run gets the current one.

    Args:
        folder: The run's folder; created if it does not exist.

    Returns:
        The version.
    """
    folder.create()
    path = folder.path / _CODE
    if not path.is_file():
        with writing(path):
            path.write_text(code_version(), encoding="utf-8")
    return path.read_text(encoding="utf-8")


def forget_checkpoints(folder: RunFolder) -> None:
    """Delete the checkpoints of a finished run; hundreds of runs would take many gigabytes.

    Args:
        folder: The run's folder.
    """
    for name in (LAST, PREVIOUS, BEST):
        (folder.path / name).unlink(missing_ok=True)


@contextlib.contextmanager
def claimed(out: Path, key: str) -> Iterator[bool]:
    """Claim an item of the queue within the block.

    Args:
        out: Folder that holds the run folders and the claims.
        key: Key of the item.

    Yields:
        False if another process has claimed it.
    """
    folder = out / ".claims"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / key, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def has_cifar10(root: str | None) -> bool:
    """Whether a folder holds CIFAR-10.

    Args:
        root: The folder, or None.

    Returns:
        True if one of the official layouts is there.
    """
    if root is None:
        return False
    folder = Path(root)
    return any((folder / layout.folder).is_dir() or folder.name == layout.folder for layout in LAYOUTS)
