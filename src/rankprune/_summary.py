"""What a person reads about the sparsity of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Layer:
    name: str
    shape: tuple[int, ...]
    total: int
    kept: int
    method: str = ""

    @property
    def sparsity(self) -> float:
        return 1.0 - self.kept / self.total


@dataclass(frozen=True)
class Report:
    """Counts per layer; prints as a table."""

    layers: Sequence[Layer]
    left_out: Mapping[str, str] = field(default_factory=dict)
    title: str = ""

    @property
    def total(self) -> int:
        return sum(layer.total for layer in self.layers)

    @property
    def kept(self) -> int:
        return sum(layer.kept for layer in self.layers)

    @property
    def sparsity(self) -> float:
        return 1.0 - self.kept / self.total

    def __str__(self) -> str:
        rows = [(x.name, "×".join(map(str, x.shape)), f"{x.kept:,}", f"{x.total:,}", f"{x.sparsity:.2%}", x.method)
                for x in self.layers]  # fmt: skip
        rows.append(("all prunable weights", "", f"{self.kept:,}", f"{self.total:,}", f"{self.sparsity:.4%}", ""))
        lines = table(("weight", "shape", "kept", "of", "sparsity", "method"), rows)
        notes = [f"left out: {name} ({reason})" for name, reason in self.left_out.items()]
        return "\n".join([*([self.title] if self.title else []), *lines, *notes])


@dataclass(frozen=True)
class Timetable:
    """When a method updates its masks, in optimizer steps from 1."""

    method: str
    updates: int
    first: int
    last: int
    reached: int  # the step whose update reaches the final sparsity; 0 at attach
    total_steps: int
    every: int | None = None  # the period, where there is one

    @property
    def settled(self) -> int:
        """Steps left after the last update, which train the final masks."""
        return self.total_steps - self.last

    def __str__(self) -> str:
        if not self.updates:
            return f"{self.method}: pruned at attach; all {self.total_steps:,} steps train the final masks"
        period = f", every {self.every}" if self.every else ""
        reached = f"final sparsity from step {self.reached:,} on" if self.reached else "final sparsity from the start"
        return (
            f"{self.method}: {self.updates:,} mask updates from step {self.first:,} to {self.last:,}{period}; "
            f"{reached}; the final masks train for {self.settled:,} of {self.total_steps:,} steps"
        )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: str = "kept of sparsity") -> list[str]:
    """Plain aligned columns; those named in `right` are flush right."""
    widths = [max(len(str(row[i])) for row in (head, *rows)) for i in range(len(head))]
    flush = [str.rjust if name in right.split() else str.ljust for name in head]
    return ["  ".join(f(str(v), w) for f, v, w in zip(flush, row, widths)).rstrip() for row in (head, *rows)]
