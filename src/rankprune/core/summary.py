"""Reports for people: counts per layer, timetables of updates, plain text tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rankprune._util import percent


@dataclass(frozen=True)
class LayerCount:
    """How many weights one layer keeps.

    Attributes:
        name: The name of the weight, as in `named_parameters()`.
        shape: Its shape.
        total: How many weights it has.
        kept: How many of them stay.
        method: The method that prunes it.
        rows: Output units.
        refills: Whether the layer's forward turns zeros of the weight into other values.
    """

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int
    method: str = ""
    rows: int = 1
    refills: bool = False

    @property
    def sparsity(self) -> float:
        """Share of the weights that is cut."""
        return 1.0 - self.kept / self.total

    @property
    def collapsed(self) -> bool:
        """Whether there is less than one weight for every ten rows, so that hardly any signal passes."""
        return 10 * self.kept < self.rows


@dataclass(frozen=True)
class Report:
    """Counts per layer; prints as a table.

    Attributes:
        layers: One entry per prunable weight.
        left_out: The reason why each other parameter is left out, by name.
        title: A line above the table.
        parameters: The number of parameters of the whole model, with biases and norms.
        shapes: The shapes of the parameters that are left out, by name.
    """

    layers: Sequence[LayerCount]
    left_out: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    parameters: int = 0
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def model_sparsity(self) -> float:
        """Share of all parameters of the model that is cut."""
        return (self.total - self.kept) / max(self.parameters, self.total)

    @property
    def warnings(self) -> list[str]:
        """One sentence for each thing that makes the sparse model worse or slower than its sparsity suggests."""
        sentences = []
        if collapsed := [layer for layer in self.layers if layer.collapsed]:
            names = _some([f"{x.name} ({x.kept:,} of {x.total:,} for {x.rows:,} rows)" for x in collapsed])
            sentences.append(
                f"nearly empty, so that next to nothing passes: {names}; use distribution='lamp' or 'erk', "
                f"add the extra rank_floor, or keep them with dense="
            )
        if standardised := [layer.name for layer in self.layers if layer.refills]:
            sentences.append(refill_warning(standardised))
        return sentences

    @property
    def total(self) -> int:
        """Prunable weights."""
        return sum(layer.total for layer in self.layers)

    @property
    def kept(self) -> int:
        """Prunable weights that stay."""
        return sum(layer.kept for layer in self.layers)

    @property
    def sparsity(self) -> float:
        """Share of the prunable weights that is cut."""
        return 1.0 - self.kept / self.total

    def __str__(self) -> str:
        rows = [(x.name, "×".join(map(str, x.shape)), f"{x.kept:,}", f"{x.total:,}", percent(x.sparsity), x.method)
                for x in self.layers]  # fmt: skip
        rows.append(("all prunable weights", "", f"{self.kept:,}", f"{self.total:,}", percent(self.sparsity, 4), ""))
        if self.parameters:
            cut = self.total - self.kept
            whole = (f"{self.parameters - cut:,}", f"{self.parameters:,}", percent(self.model_sparsity, 4))
            rows.append(("all parameters of the model", "", *whole, ""))
        lines = table(("weight", "shape", "kept", "of", "sparsity", "method"), rows)
        notes = [f"left out: {self._sized(name)} ({reason})" for name, reason in self.left_out.items()]
        notes += self.warnings
        return "\n".join([*([self.title] if self.title else []), *lines, *notes])

    def _sized(self, name: str) -> str:
        shape = self.shapes.get(name)
        return name if shape is None else f"{name} {'×'.join(map(str, shape))}, {math.prod(shape):,} weights"


def refill_warning(names: Sequence[str]) -> str:
    """The warning for layers that standardise their weight.

    Args:
        names: The layers.
    """
    return (
        f"standardised in forward, which turns zeros into other values, so that these run dense: {_some(names)}; "
        f"keep them with dense= or use plain convolutions"
    )


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@dataclass(frozen=True)
class Timetable:
    """When a method updates its masks, in optimizer steps from 1.

    Attributes:
        method: The name of the method.
        updates: How many updates there are.
        first: The step of the first one.
        last: The step of the last one.
        reached: The step whose update reaches the final sparsity; 0 at attach.
        total_steps: Optimizer steps of the training.
        every: The period, if there is one.
    """

    method: str
    updates: int
    first: int
    last: int
    reached: int
    total_steps: int
    every: int | None = None

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
    """The lines of a table with aligned columns.

    Args:
        head: The headings.
        rows: The cells, as text.
        right: The headings of the right-aligned columns, separated by spaces.
    """
    widths = [max(len(str(row[i])) for row in (head, *rows)) for i in range(len(head))]
    aligned = [str.rjust if name in right.split() else str.ljust for name in head]
    return ["  ".join(pad(str(v), w) for pad, v, w in zip(aligned, row, widths)).rstrip() for row in (head, *rows)]
