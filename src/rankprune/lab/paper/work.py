"""Working through the queue: one run after another, in pieces, until it is done or the time is up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rankprune.lab.data.cifar10 import LAYOUTS
from rankprune.lab.recipes.load import to_dict
from rankprune.lab.recipes.schema import Recipe
from rankprune.lab.training import Interrupted, NanLoss, OffTarget, Watcher, train
from rankprune.lab.training.checkpoint import LAST, PREVIOUS
from rankprune.lab.training.environment import environment
from rankprune.lab.training.folder import BEST, MODEL, RunFolder, writing
from rankprune.lab.training.smoke import stand_in

from .measure import MEASUREMENTS, measurement_key
from .queue import Item, Measurement, Queue, read_queue
from .records import Record, Records, code_version
from .runs import Run

Say = Callable[[str], None]
Share = Literal["all", "runs", "measurements"]
_CODE = "code.txt"  # in a run's folder: which code began it


@dataclass
class Places:
    """Where things lie."""

    results: Path
    out: Path
    data: str | None = None

    @property
    def embedded(self) -> bool:
        return not has_cifar10(self.data)

    def records(self) -> Records:
        return Records(self.results / "records")

    def queue(self, records: Records) -> Queue:
        return read_queue(self.results / "queue.yaml", records)


@dataclass
class Worker:
    """Does what is due, until nobody has anything left for it."""

    places: Places
    seconds: float | None = None  # how long; None: to the end
    again: bool = False  # also what only older code has a record of
    share: Share = "all"  # beside others a worker cannot measure
    watcher: Watcher = field(default_factory=Watcher)
    say: Say = print
    finished: Callable[[Record], None] = lambda record: None

    def run(self) -> int:
        """The number of records added."""
        deadline = Deadline(self.watcher, None if self.seconds is None else time.monotonic() + self.seconds)
        passed: set[Item] = set()
        added = 0
        while not deadline.over():
            records = self.places.records()
            queue = self.places.queue(records)
            due = [item for _, item in queue.items if item not in passed and not self._done(item, records)]
            item = next((item for item in due if self._open(item)), None)
            if item is None:
                break
            with claimed(self.places.out, self._key(item)) as mine:
                if not mine:
                    passed.add(item)
                    continue
                records = self.places.records()
                if self._done(item, records):  # by another, after the queue was read and before it was ours
                    continue
                try:
                    record = self._do(item, deadline)
                    records.add(record)
                except Interrupted:
                    if deadline.fired:
                        break
                    raise
                except (ValueError, RuntimeError) as error:
                    if isinstance(error.__cause__, OSError):  # a full disk would stop the next one as well
                        raise
                    self.say(f"{item} is passed over: {error}")
                    passed.add(item)
                    continue
                added += 1
                self.finished(record)
        return added

    def _key(self, item: Item) -> str:
        return measurement_key(item.name) if isinstance(item, Measurement) else item.key(self.places.embedded)

    def _done(self, item: Item, records: Records) -> bool:
        if isinstance(item, Run) and not item.known():
            return False
        return records.has(self._key(item), code_version() if self.again else None)

    def _open(self, item: Item) -> bool:
        """Whether this worker can do it at all."""
        if isinstance(item, Measurement):
            return self.share != "runs"
        return self.share != "measurements" and item.known()

    def _do(self, item: Item, deadline: Deadline) -> Record:
        if isinstance(item, Measurement):
            self.say(f"measuring {item.name}")
            found = MEASUREMENTS[item.name](self.places.data, self.places.embedded)
            return describe(measurement_key(item.name), item.name, 0, code_version(), found)
        return self._train(item, deadline)

    def _train(self, run: Run, deadline: Deadline) -> Record:
        # What older code has left in the folder is what is to be done again.
        places = replace(self.places, out=self.places.out / code_version()) if self.again else self.places
        if run.pretrained:
            dense = run.dense().placed(places.out, places.data, places.embedded)
            if not (RunFolder.of(dense, places.out).path / MODEL).is_file():
                self.say(f"{dense.name} comes first: its weights are a start")
                train(dense, places.out, resume=True, watcher=deadline)
        recipe = run.placed(places.out, places.data, places.embedded)
        folder = RunFolder.of(recipe, places.out)
        code = begun_by(folder)
        key = run.key(places.embedded)
        data = stand_in(recipe) if run.smoke else None
        try:
            outcome = train(recipe, places.out, resume=True, watcher=deadline, data=data)
        except (NanLoss, OffTarget) as error:
            why = str(error).replace(f"{folder.path}: ", "").replace(str(folder.path), folder.path.name)
            record = describe(key, recipe.name, run.seed, code, None, recipe)
            return {**record, "failed": why}
        forget_checkpoints(folder)
        record = describe(key, recipe.name, run.seed, code, outcome.result, recipe)
        return {**record, "smoke": run.smoke, "pretrained": run.pretrained, "epochs": folder.metrics()}


class Deadline(Watcher):
    """Passes on what it hears and, when the time is up, asks the run to stop as a signal would."""

    def __init__(self, inner: Watcher, at: float | None) -> None:
        self.inner, self.at, self.fired = inner, at, False

    def over(self) -> bool:
        return self.fired or (self.at is not None and time.monotonic() >= self.at)

    def step(self, step: int) -> None:
        self.inner.step(step)
        if self.over() and not self.fired:
            self.fired = True
            signal.raise_signal(signal.SIGTERM)

    def begin(self, recipe: Recipe, folder: Path, step: int, total_steps: int) -> None:
        self.inner.begin(recipe, folder, step, total_steps)

    def epoch(self, line: dict[str, Any]) -> None:
        self.inner.epoch(line)

    def message(self, text: str) -> None:
        self.inner.message(text)

    def end(self) -> None:
        self.inner.end()


def describe(
    run: str, name: str, seed: int, code: str, result: dict[str, Any] | None, recipe: Recipe | None = None
) -> Record:
    """What is kept of a run: enough to know how it came about, and no path of the machine it ran on."""
    here = {key: value for key, value in environment().items() if key != "platform"}
    record: Record = {"run": run, "name": name, "seed": seed, "code": code, "result": result, "environment": here}
    if code != code_version():
        record["finished_by"] = code_version()
    if recipe is not None:
        resolved = to_dict(recipe)
        resolved["data"].pop("root", None)
        resolved["model"].pop("weights", None)
        record["recipe"] = resolved
        if recipe.data.name == "fashion":
            record["data"] = "the embedded slice of Fashion-MNIST, because CIFAR-10 was not there"
    return record


def begun_by(folder: RunFolder) -> str:
    """The code that began a run; for a new one, this."""
    folder.create()
    path = folder.path / _CODE
    if not path.is_file():
        with writing(path):
            path.write_text(code_version(), encoding="utf-8")
    return path.read_text(encoding="utf-8")


def forget_checkpoints(folder: RunFolder) -> None:
    """A finished run needs them no more, and hundreds of runs are many gigabytes."""
    for name in (LAST, PREVIOUS, BEST):
        (folder.path / name).unlink(missing_ok=True)


@contextlib.contextmanager
def claimed(out: Path, key: str) -> Iterator[bool]:
    """Whether this process may do it; another that works on the same queue then leaves it alone."""
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
    if root is None:
        return False
    folder = Path(root)
    return any((folder / layout.folder).is_dir() or folder.name == layout.folder for layout in LAYOUTS)


def in_parallel(command: Sequence[str], jobs: int) -> int:
    """Several workers, each on its share of the cores; a signal goes to all. The first exit code not 0."""
    threads = str(max((os.cpu_count() or 1) // jobs, 1))
    workers = [
        subprocess.Popen([sys.executable, "-m", "rankprune", *command], env={**os.environ, "OMP_NUM_THREADS": threads})
        for _ in range(jobs)
    ]

    def pass_on(signum: int, frame: Any) -> None:
        for worker in workers:
            worker.send_signal(signum)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        codes = [worker.wait() for worker in workers]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return next((code if code > 0 else 128 - code for code in codes if code), 0)  # as shells count signals
