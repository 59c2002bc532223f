"""The optimizer steps taken, counted without looking at a device until it must, and the step under way."""

from __future__ import annotations

import bisect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from .group import Group
    from .layer import PrunableLayer


class Clock:
    """Steps taken.

    A fused optimizer under a GradScaler leaves a flag on the device that says whether it skipped; such flags are
    summed there, and the sum read only when a mask update may be due.
    """

    def __init__(self) -> None:
        self._confirmed = 0
        self._pending = 0  # steps that left a flag; `_skips` sums the flags of those that were skipped
        self._skips: Tensor | None = None

    @property
    def steps(self) -> int:
        if self._skips is not None:
            self.steps = self._confirmed + self._pending - int(self._skips.item())
        return self._confirmed

    @steps.setter
    def steps(self, value: int) -> None:
        self._confirmed, self._pending, self._skips = value, 0, None

    def tick(self, skipped: Tensor | None) -> None:
        """Count a step.

        Args:
            skipped: The flag of a fused optimizer that may have skipped it; None: it was taken.
        """
        if skipped is None:
            self._confirmed += 1
            return
        flag = skipped.ne(0).to(torch.int64)
        self._pending += 1
        self._skips = flag if self._skips is None else self._skips + flag.to(self._skips.device)

    def due(self, updates: Sequence[int], within: int = 1) -> bool:
        """Whether one of the next `within` steps is among `updates` (sorted).

        Args:
            updates: The steps of the updates, sorted.
            within: How many of the next steps to look at.
        """
        index = bisect.bisect_right(updates, self._confirmed)
        if index == len(updates) or self._confirmed + self._pending + within < updates[index]:
            return False
        following = self.steps + 1
        index = bisect.bisect_left(updates, following)
        return index < len(updates) and updates[index] < following + within


@dataclass
class Step:
    """The step under way: from the first optimizer's pre-hook to the last one's post-hook.

    Attributes:
        updating: Groups whose masks move in it.
        skipped: The flag of a fused optimizer that decides by itself whether to step.
        stepped: Optimizers that have taken part.
        swapped: Layers whose latents stand in the weights' place, with their group.
        stashed: Gradients set aside while a mask update replaces the step of an optimizer.
    """

    updating: list[Group] = field(default_factory=list)
    skipped: Tensor | None = None
    stepped: list[Optimizer] = field(default_factory=list)
    swapped: dict[PrunableLayer, Group] = field(default_factory=dict)
    stashed: dict[Optimizer, list[tuple[nn.Parameter, Tensor]]] = field(default_factory=dict)

    @property
    def replaced(self) -> bool:
        """Whether a mask update stands in for the optimizer step."""
        return any(group.method.replaces_optimizer_step() for group in self.updating)


def within_step(optimizer: Optimizer) -> bool:
    """Whether the caller's step hook belongs to a `super().step()` within a step of this optimizer.

    torch wraps `step` of each class that was instantiated, so a subclass that calls its parent's runs the hooks twice.
    A step that failed leaves no trace on the stack, as it would in a counter.

    Args:
        optimizer: The optimizer.
    """
    wrappers, frame = 0, sys._getframe(1)
    while frame is not None and wrappers < 2:
        is_wrapper = frame.f_code.co_name == "wrapper" and frame.f_globals.get("__name__") == Optimizer.__module__
        wrappers += is_wrapper and frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return wrappers > 1


def skipped(optimizer: Optimizer) -> Tensor | None:
    """The flag a GradScaler leaves on an optimizer that decides by itself (fused): 1 where the step was skipped.

    Args:
        optimizer: The optimizer.
    """
    found = getattr(optimizer, "found_inf", None)
    return found if isinstance(found, Tensor) else None


def grad_scale(optimizer: Optimizer | None) -> Tensor | None:
    """The scale gradients still carry when a fused optimizer unscales them by itself.

    Args:
        optimizer: The optimizer, if there is one.
    """
    scale = getattr(optimizer, "grad_scale", None)
    return scale if isinstance(scale, Tensor) else None
