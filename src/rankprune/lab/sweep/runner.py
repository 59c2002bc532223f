"""What runs the trainings of `sweep` and of `paper run`: a source of orders, and a runner that works through them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rankprune.lab.recipes.load import to_dict
from rankprune.lab.recipes.schema import Recipe
from rankprune.lab.runs.result import RunResult
from rankprune.lab.runs.run_folder import RunFolder

RETRIES = 3  # of a run whose process is killed


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
        return f"{self.recipe.name} (seed {self.recipe.seed})"

    @property
    def folder(self) -> Path:
        return RunFolder.of(self.recipe, self.out).path

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a worker process."""
        out = str(self.out.absolute())
        return {"recipe": to_dict(self.recipe), "out": out, "generated_data": self.generated_data}


@dataclass(frozen=True)
class Reply:
    """How an order ended: with a result, or with a failure and the exit code that goes with it.

    Attributes:
        folder: The run folder; None where the run failed.
        result: What the run found; None where it failed.
        found: Whether the run had been finished before.
        failure: One sentence on what went wrong; empty where nothing did.
        code: Exit code of the failure, as of `rankprune train`.
        disk: Whether the disk refused to write, which would stop the next run as well.
    """

    folder: Path | None = None
    result: RunResult | None = None
    found: bool = False
    failure: str = ""
    code: int = 0
    disk: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a worker process sends them."""
        result = None if self.result is None else self.result.to_dict()
        folder = None if self.folder is None else str(self.folder)
        return {
            "folder": folder, "result": result, "found": self.found, "failure": self.failure, "code": self.code,
            "disk": self.disk,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> Reply:
        """Rebuild what `to_dict` gave."""
        folder, result = table["folder"], table["result"]
        found = None if result is None else RunResult.from_dict(result)
        return cls(
            None if folder is None else Path(folder), found, table["found"], table["failure"], table["code"],
            table["disk"],
        )  # fmt: skip


# The next order, or None where nothing is due now. A runner asks again whenever a run ends, and stops when nothing is
# due and nothing runs. The argument says whether nothing runs, so that a source may measure something undisturbed.
Source = Callable[[bool], Order | None]
Done = Callable[[Order, Reply], None]


class Runner(Protocol):
    """Runs orders, several at a time, in local processes or on a Ray cluster."""

    def run(self, source: Source, done: Done, seconds: float | None = None) -> bool:
        """Work until the source has nothing left, or until the time is up.

        Args:
            source: Gives the next order.
            done: Called with each order that ended.
            seconds: How long; what runs then is saved and resumed next time. None: to the end.

        Returns:
            Whether it ended because nothing was left (and not because the time was up).

        Raises:
            Interrupted: A signal asked to stop; what ran has been saved.
        """
        ...
