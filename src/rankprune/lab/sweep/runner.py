"""The interface between a source of training runs (`sweep`, `paper run`) and a runner that executes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rankprune.lab.recipes.load import to_dict
from rankprune.lab.recipes.schema import Recipe
from rankprune.lab.runs.result import RunResult
from rankprune.lab.runs.run_folder import RunFolder

RETRIES = 3  # how often a run is restarted after its process was killed


@dataclass(frozen=True)
class Order:
    """One training run.

    Attributes:
        recipe: What to train; an unfinished run is resumed.
        out: The folder that holds run folders.
        generated_data: Whether a smoke run generates its images where the recipe names no data folder.
    """

    recipe: Recipe
    out: Path
    generated_data: bool = False

    @property
    def name(self) -> str:
        """Name and seed of the run, for messages."""
        return f"{self.recipe.name} (seed {self.recipe.seed})"

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return RunFolder.of(self.recipe, self.out).path

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a worker process."""
        out = str(self.out.absolute())
        return {"recipe": to_dict(self.recipe), "out": out, "generated_data": self.generated_data}


@dataclass(frozen=True)
class Reply:
    """How an order ended: with a result, or with a failure and the exit code that goes with it.

    Attributes:
        folder: The run folder; None if the run failed.
        result: The run's result; None if it failed.
        finished_before: Whether the run had been finished before.
        failure: One sentence about the failure; empty if there is none.
        code: Exit code of the failure, as of `rankprune train`.
        disk: Whether a file could not be written, in which case the next run would fail as well.
    """

    folder: Path | None = None
    result: RunResult | None = None
    finished_before: bool = False
    failure: str = ""
    code: int = 0
    disk: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as a worker process sends them."""
        result = None if self.result is None else self.result.to_dict()
        folder = None if self.folder is None else str(self.folder)
        return {
            "folder": folder, "result": result, "finished_before": self.finished_before, "failure": self.failure,
            "code": self.code, "disk": self.disk,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> Reply:
        """Rebuild a reply.

        Args:
            table: What `to_dict` returned.

        Returns:
            The reply.
        """
        folder, result = table["folder"], table["result"]
        known = None if result is None else RunResult.from_dict(result)
        return cls(
            None if folder is None else Path(folder), known, table["finished_before"], table["failure"], table["code"],
            table["disk"],
        )  # fmt: skip


# Returns the next order, or None if there is none at present. A runner asks again whenever a run ends, and stops when
# there is no order and no active run. The argument is True if no run is active, so that a source can take timings.
Source = Callable[[bool], Order | None]
Done = Callable[[Order, Reply], None]


class Runner(Protocol):
    """Runs orders, several at a time, in local processes or on a Ray cluster."""

    def run(self, source: Source, done: Done, seconds: float | None = None) -> bool:
        """Run until the source has no more orders, or until the time is up.

        Args:
            source: Returns the next order.
            done: Called with each order that ended.
            seconds: Stop after this time and save the active runs; None for no limit.

        Returns:
            True if no orders were left, False if the time was up.

        Raises:
            Interrupted: A signal asked to stop; the active runs have been saved.
        """
        ...
