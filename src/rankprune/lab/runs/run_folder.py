"""A run's folder: its name, its lock, its small files."""

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
    """Turn the system's refusal to write (a full disk, a read-only folder) into one sentence."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:  # our own words, from before anything was begun
            raise RunError(f"{error}.") from error
        raise RunError(f"{path} could not be written ({error.strerror}): what was saved before is intact.") from error


def damaged(path: Path, error: NotWhole) -> str:
    """The sentence about a damaged file of a run folder."""
    return f"{path} is damaged ({error}): remove it and resume the run."


class RunFolder:
    """`out/NAME-HASH`: the hash is of the resolved recipe, so the same run is found again."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def of(cls, recipe: Recipe, out: str | Path) -> RunFolder:
        return cls(Path(out) / f"{recipe.name}-{fingerprint(recipe)}")

    def create(self) -> None:
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder against a second writer; the system lets go of it however this process ends."""
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
        """Remove what writers that were killed left half written. Only for whoever holds the lock."""
        for path in self.path.glob(".*.*"):
            if path.is_file():
                path.unlink(missing_ok=True)
        (self.path / "next.ckpt").unlink(missing_ok=True)

    def write_recipe(self, recipe: Recipe) -> None:
        self._write(RECIPE, dump(to_dict(recipe)))

    def write_json(self, name: str, value: Any) -> None:
        self._write(name, json.dumps(value, indent=2) + "\n")

    def read_json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        if not path.is_file():
            return None
        try:
            return unseal(read_table(path), {})
        except NotWhole as error:
            raise RunError(damaged(path, error)) from None

    def write_result(self, result: RunResult) -> None:
        """Write result.json with a checksum, which `result` compares."""
        self.write_json(RESULT, seal(result.to_dict()))

    def result(self) -> RunResult | None:
        """Read result.json.

        Returns:
            What the run found, or None while it is not finished.

        Raises:
            RunError: The file is damaged.
        """
        table = self.read_json(RESULT)
        try:
            return None if table is None else RunResult.from_dict(table)
        except NotWhole as error:
            raise RunError(damaged(self.path / RESULT, error)) from None

    def metrics(self) -> list[dict[str, Any]]:
        """The epochs so far; a last line that was cut short does not count."""
        path = self.path / METRICS
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [line for line in found if isinstance(line, dict) and isinstance(line.get("epoch"), int)]

    def append_metrics(self, line: dict[str, Any]) -> None:
        path = self.path / METRICS
        with writing(path), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def keep_metrics(self, epochs: int) -> None:
        """Forget lines of epochs that will be run again."""
        kept = [line for line in self.metrics() if line["epoch"] <= epochs]
        self._write(METRICS, "".join(json.dumps(line) + "\n" for line in kept))

    def _write(self, name: str, text: str) -> None:
        with writing(self.path / name):
            write_atomic(self.path / name, text.encode())
