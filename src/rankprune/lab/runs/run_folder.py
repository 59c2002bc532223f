"""The folder of a run: its name, its lock and its small files."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankprune._util import write_atomic
from rankprune.lab.errors import RunError
from rankprune.lab.recipes.load import fingerprint, to_dict
from rankprune.lab.recipes.schema import Recipe
from rankprune.lab.recipes.yaml_file import dump

from .result import RunResult
from .sealed_json import NotWhole, read_table, seal, unseal

RECIPE, ENVIRONMENT, METRICS, RESULT = "recipe.yaml", "environment.json", "metrics.jsonl", "result.json"
MODEL, BEST = "model.sparse.safetensors", "best.ckpt"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an operating system error while writing (a full disk, a read-only folder) into one sentence.

    Args:
        path: What is being written.

    Yields:
        Nothing.

    Raises:
        RunError: The file could not be written.
    """
    try:
        yield
    except OSError as error:
        if error.strerror is None:  # raised by our own code, with a message for the user
            raise RunError(f"{error}.") from error
        raise RunError(f"{path} could not be written ({error.strerror}): what was saved before is intact.") from error


def damaged(path: Path, error: NotWhole) -> str:
    """Return the message about a damaged file of a run folder.

    Args:
        path: The file.
        error: What is wrong with it.

    Returns:
        One sentence.
    """
    return f"{path} is damaged ({error}): remove it and resume the run."


class RunFolder:
    """The folder `out/NAME-HASH` of a run. The hash is of the resolved recipe, so the same recipe finds its run again.

    Args:
        path: The folder; it need not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def of(cls, recipe: Recipe, out: str | Path) -> RunFolder:
        """Return the folder of a recipe's run.

        Args:
            recipe: The resolved recipe.
            out: Folder that holds the run folders.

        Returns:
            The run's folder.
        """
        return cls(Path(out) / f"{recipe.name}-{fingerprint(recipe)}")

    def create(self) -> None:
        """Create the folder, unless it exists.

        Raises:
            RunError: It cannot be created.
        """
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against a second writer. The operating system releases the lock however this process ends.

        Yields:
            Nothing.

        Raises:
            RunError: Another process holds the lock.
        """
        path = self.path / ".lock"
        with writing(path):
            file = open(path, "a+", encoding="utf-8")  # noqa: SIM115  (closed below)
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                owner = file.read().strip() or "unknown"
                raise RunError(f"{self.path} is being written by process {owner}: wait for it or stop it.") from None
            with writing(path):
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
            yield

    def tidy(self) -> None:
        """Remove partial files of writers that were killed. Call it only while holding the lock."""
        for path in self.path.glob(".*.*"):
            if path.is_file():
                path.unlink(missing_ok=True)
        (self.path / "next.ckpt").unlink(missing_ok=True)

    def write_recipe(self, recipe: Recipe) -> None:
        """Write recipe.yaml.

        Args:
            recipe: The resolved recipe.
        """
        self._write(RECIPE, dump(to_dict(recipe)))

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file atomically.

        Args:
            name: Name of the file.
            value: Its content.
        """
        self._write(name, json.dumps(value, indent=2) + "\n")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Read a JSON file that holds an object.

        Args:
            name: Name of the file.

        Returns:
            The object without its checksum, or None if there is no such file.

        Raises:
            RunError: The file is damaged.
        """
        path = self.path / name
        if not path.is_file():
            return None
        try:
            return unseal(read_table(path), {})
        except NotWhole as error:
            raise RunError(damaged(path, error)) from None

    def write_result(self, result: RunResult) -> None:
        """Write result.json with a checksum, which `result` verifies.

        Args:
            result: The result.
        """
        self.write_json(RESULT, seal(result.to_dict()))

    def result(self) -> RunResult | None:
        """Read result.json.

        Returns:
            The result, or None if the run is not finished.

        Raises:
            RunError: The file is damaged.
        """
        table = self.read_json(RESULT)
        try:
            return None if table is None else RunResult.from_dict(table)
        except NotWhole as error:
            raise RunError(damaged(self.path / RESULT, error)) from None

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of the epochs so far. Lines that are damaged, as by a killed writer, are left out."""
        path = self.path / METRICS
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        epochs = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                epochs.append(json.loads(line))
        return [epoch for epoch in epochs if isinstance(epoch, dict) and isinstance(epoch.get("epoch"), int)]

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Append the metrics of an epoch to metrics.jsonl.

        Args:
            line: The metrics, with the key "epoch".
        """
        path = self.path / METRICS
        with writing(path), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def keep_metrics(self, epochs: int) -> None:
        """Remove the metrics of epochs that will be run again.

        Args:
            epochs: Number of epochs to keep.
        """
        lines = [line for line in self.metrics() if line["epoch"] <= epochs]
        self._write(METRICS, "".join(json.dumps(line) + "\n" for line in lines))

    def _write(self, name: str, text: str) -> None:
        with writing(self.path / name):
            write_atomic(self.path / name, text.encode())
